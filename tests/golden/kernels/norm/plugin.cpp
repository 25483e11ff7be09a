// ONNX FusedLayerNormQKV to AtcfuseLayerNormQKV: reads the node's attributes and refuses those of another kernel.
#include <cstdio>
#include <string>
#include <vector>

#include "atcfuse_attributes.h"
#include "register/register.h"

namespace domi {
namespace {

constexpr const char* kOp = "AtcfuseLayerNormQKV";

Status refuse(const char* attribute)
{
    std::fprintf(stderr,
                 "[ERROR] atcfuse: %s: attribute %s of the node is not the one that this kernel was generated for; build "
                 "and install the project that was written beside the model\n",
                 kOp, attribute);
    return FAILED;
}

Status parseAttributes(const ge::Operator& source, ge::Operator& target)
{
    ge::AscendString text;
    atcfuse::Attributes attributes;
    if (source.GetAttr("attribute", text) != ge::GRAPH_SUCCESS) {
        return refuse("(all)");
    }
    if (!attributes.parse(text.GetString())) {
        std::fprintf(stderr, "[ERROR] atcfuse: %s: the node's attributes are not JSON\n", kOp);
        return FAILED;
    }
    const std::string found_norm = attributes.text("norm", "layer_norm");
    if (found_norm != "layer_norm") {
        return refuse("norm");
    }
    target.SetAttr("norm", ge::AscendString(found_norm.c_str()));
    const float found_epsilon = attributes.number("epsilon", 9.99999996e-13f);
    if (!atcfuse::sameNumber(found_epsilon, 9.99999996e-13f)) {
        return refuse("epsilon");
    }
    target.SetAttr("epsilon", found_epsilon);
    const int64_t found_num_projections = attributes.integer("num_projections", 3LL);
    if (found_num_projections != 3LL) {
        return refuse("num_projections");
    }
    target.SetAttr("num_projections", found_num_projections);
    const std::vector<int64_t> expected_transposed = {0LL, 0LL, 0LL};
    const std::vector<int64_t> found_transposed = attributes.integers("transposed", expected_transposed);
    if (found_transposed != expected_transposed) {
        return refuse("transposed");
    }
    target.SetAttr("transposed", found_transposed);
    return SUCCESS;
}

}  // namespace

REGISTER_CUSTOM_OP("AtcfuseLayerNormQKV")
    .FrameworkType(ONNX)
    .OriginOpType({
        ge::AscendString("atcfuse::1::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::8::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::9::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::10::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::11::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::12::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::13::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::14::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::15::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::16::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::17::FusedLayerNormQKV"),
        ge::AscendString("ai.onnx::18::FusedLayerNormQKV"),
    })
    .ParseParamsByOperatorFn(parseAttributes)
    .ImplyType(ImplyType::TVM);

}  // namespace domi
