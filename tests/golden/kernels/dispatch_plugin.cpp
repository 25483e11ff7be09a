// ONNX FusedAttention to that of 2 GE operators whose kernel was generated for the node.
// ATC chooses a plugin by op type alone, so this one compares attributes and which inputs and outputs a node has. The
// node becomes a PartitionedCall, which ATC replaces by the graph that makeGraph gives. Not tried on a device.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "atcfuse_attributes.h"
#include "atcfuse_node.h"
#include "graph/graph.h"
#include "graph/operator_factory.h"
#include "register/register.h"

namespace domi {
namespace {

constexpr const char* kOnnxOp = "FusedAttention";
constexpr const char* kChosen = "atcfuse_operator";
constexpr const char* kPresent = "atcfuse_inputs";
constexpr const char* kOutputs = "atcfuse_outputs";

/// The kernels' inputs by position.
constexpr const char* kInputs[] = {"q", "k", "v", "bias", "mask"};

struct Candidate {
    const char* opType;
    bool (*takes)(const atcfuse::Attributes& attributes);
    void (*describe)(ge::Operator& target);
    std::vector<int64_t> inputs;  // positions of those present
    int64_t outputs;
};

bool takes0(const atcfuse::Attributes& a)
{
    return a.integer("num_heads", 2LL) == 2LL &&
           a.integer("num_kv_heads", 2LL) == 2LL &&
           a.integer("head_dim", 16LL) == 16LL &&
           a.integer("v_head_dim", 16LL) == 16LL &&
           a.isNumber("scale", 0.25f) &&
           a.isNumber("softcap", 0.0f) &&
           a.isNumber("mask_fill", -__builtin_inff()) &&
           a.integer("mask_keeps", 1LL) == 1LL &&
           a.integer("mask_first", 0LL) == 0LL &&
           a.integer("bias_cycles", 0LL) == 0LL &&
           a.integer("mask_cycles", 0LL) == 0LL &&
           a.isNumber("floor", -__builtin_inff()) &&
           a.text("causal", "none") == "none" &&
           a.text("masked_rows", "softmax") == "softmax" &&
           a.integer("softmax_precision", 10LL) == 10LL &&
           a.text("q_layout", "BSH") == "BSH" &&
           a.text("k_layout", "BSH") == "BSH" &&
           a.text("v_layout", "BSH") == "BSH" &&
           a.text("out_layout", "BSH") == "BSH" &&
           a.integer("q_offset", 0LL) == 0LL &&
           a.integer("k_offset", 0LL) == 0LL &&
           a.integer("v_offset", 0LL) == 0LL;
}

void describe0(ge::Operator& target)
{
    target.SetAttr("num_heads", static_cast<int64_t>(2LL));
    target.SetAttr("num_kv_heads", static_cast<int64_t>(2LL));
    target.SetAttr("head_dim", static_cast<int64_t>(16LL));
    target.SetAttr("v_head_dim", static_cast<int64_t>(16LL));
    target.SetAttr("scale", 0.25f);
    target.SetAttr("softcap", 0.0f);
    target.SetAttr("mask_fill", ge::AscendString("-inf"));
    target.SetAttr("mask_keeps", static_cast<int64_t>(1LL));
    target.SetAttr("mask_first", static_cast<int64_t>(0LL));
    target.SetAttr("bias_cycles", static_cast<int64_t>(0LL));
    target.SetAttr("mask_cycles", static_cast<int64_t>(0LL));
    target.SetAttr("floor", ge::AscendString("-inf"));
    target.SetAttr("causal", ge::AscendString("none"));
    target.SetAttr("masked_rows", ge::AscendString("softmax"));
    target.SetAttr("softmax_precision", static_cast<int64_t>(10LL));
    target.SetAttr("q_layout", ge::AscendString("BSH"));
    target.SetAttr("k_layout", ge::AscendString("BSH"));
    target.SetAttr("v_layout", ge::AscendString("BSH"));
    target.SetAttr("out_layout", ge::AscendString("BSH"));
    target.SetAttr("q_offset", static_cast<int64_t>(0LL));
    target.SetAttr("k_offset", static_cast<int64_t>(0LL));
    target.SetAttr("v_offset", static_cast<int64_t>(0LL));
}

bool takes1(const atcfuse::Attributes& a)
{
    return a.integer("num_heads", 2LL) == 2LL &&
           a.integer("num_kv_heads", 2LL) == 2LL &&
           a.integer("head_dim", 16LL) == 16LL &&
           a.integer("v_head_dim", 16LL) == 16LL &&
           a.isNumber("scale", 0.25f) &&
           a.isNumber("softcap", 0.0f) &&
           a.isNumber("mask_fill", -__builtin_inff()) &&
           a.integer("mask_keeps", 1LL) == 1LL &&
           a.integer("mask_first", 0LL) == 0LL &&
           a.integer("bias_cycles", 0LL) == 0LL &&
           a.integer("mask_cycles", 0LL) == 0LL &&
           a.isNumber("floor", -__builtin_inff()) &&
           a.text("causal", "none") == "none" &&
           a.text("masked_rows", "softmax") == "softmax" &&
           a.integer("softmax_precision", 10LL) == 10LL &&
           a.text("q_layout", "BSH") == "BSH" &&
           a.text("k_layout", "BSH") == "BSH" &&
           a.text("v_layout", "BSH") == "BSH" &&
           a.text("out_layout", "BSH") == "BSH" &&
           a.integer("q_offset", 0LL) == 0LL &&
           a.integer("k_offset", 0LL) == 0LL &&
           a.integer("v_offset", 0LL) == 0LL;
}

void describe1(ge::Operator& target)
{
    target.SetAttr("num_heads", static_cast<int64_t>(2LL));
    target.SetAttr("num_kv_heads", static_cast<int64_t>(2LL));
    target.SetAttr("head_dim", static_cast<int64_t>(16LL));
    target.SetAttr("v_head_dim", static_cast<int64_t>(16LL));
    target.SetAttr("scale", 0.25f);
    target.SetAttr("softcap", 0.0f);
    target.SetAttr("mask_fill", ge::AscendString("-inf"));
    target.SetAttr("mask_keeps", static_cast<int64_t>(1LL));
    target.SetAttr("mask_first", static_cast<int64_t>(0LL));
    target.SetAttr("bias_cycles", static_cast<int64_t>(0LL));
    target.SetAttr("mask_cycles", static_cast<int64_t>(0LL));
    target.SetAttr("floor", ge::AscendString("-inf"));
    target.SetAttr("causal", ge::AscendString("none"));
    target.SetAttr("masked_rows", ge::AscendString("softmax"));
    target.SetAttr("softmax_precision", static_cast<int64_t>(10LL));
    target.SetAttr("q_layout", ge::AscendString("BSH"));
    target.SetAttr("k_layout", ge::AscendString("BSH"));
    target.SetAttr("v_layout", ge::AscendString("BSH"));
    target.SetAttr("out_layout", ge::AscendString("BSH"));
    target.SetAttr("q_offset", static_cast<int64_t>(0LL));
    target.SetAttr("k_offset", static_cast<int64_t>(0LL));
    target.SetAttr("v_offset", static_cast<int64_t>(0LL));
}

const std::vector<Candidate>& candidates()
{
    static const std::vector<Candidate> all = {
        {"AtcfuseAttention0", takes0, describe0, {0, 1, 2}, 1},
        {"AtcfuseAttention1", takes1, describe1, {0, 1, 2, 3}, 1},
    };
    return all;
}

Status refuse(const std::string& why)
{
    std::fprintf(stderr, "[ERROR] atcfuse: %s: %s\n", kOnnxOp, why.c_str());
    return FAILED;
}

Status parseNode(const ge::Operator& source, ge::Operator& target)
{
    atcfuse::Node node;
    if (!node.read(source)) {
        return refuse("the node cannot be read");
    }
    const std::vector<int64_t> present = node.presentInputs();
    for (size_t i = 0; i < candidates().size(); ++i) {
        const Candidate& candidate = candidates()[i];
        if (candidate.inputs != present || candidate.outputs != node.outputs() || !candidate.takes(node.attributes)) {
            continue;
        }
        target.DynamicInputRegister("args", static_cast<uint32_t>(node.inputs()));
        target.DynamicOutputRegister("output", static_cast<uint32_t>(node.outputs()));
        target.SetAttr("original_type", ge::AscendString(node.type.c_str()));
        target.SetAttr(kChosen, static_cast<int64_t>(i));
        target.SetAttr(kPresent, present);
        target.SetAttr(kOutputs, node.outputs());
        return SUCCESS;
    }
    return refuse("no kernel was generated for node " + node.name + "; build and install the project that was written "
                  "beside the model");
}

Status makeGraph(const ge::Operator& node, ge::Graph& graph)
{
    int64_t chosen = 0;
    int64_t outputCount = 0;
    std::vector<int64_t> present;
    ge::AscendString name;
    const bool known = node.GetAttr(kChosen, chosen) == ge::GRAPH_SUCCESS &&
                       node.GetAttr(kPresent, present) == ge::GRAPH_SUCCESS &&
                       node.GetAttr(kOutputs, outputCount) == ge::GRAPH_SUCCESS &&
                       node.GetName(name) == ge::GRAPH_SUCCESS;
    if (!known || chosen < 0 || static_cast<size_t>(chosen) >= candidates().size()) {
        return refuse("a node lost what was read of it");
    }
    const Candidate& candidate = candidates()[static_cast<size_t>(chosen)];
    ge::Operator target = ge::OperatorFactory::CreateOperator(name.GetString(), candidate.opType);
    ge::AscendString made;
    if (target.GetName(made) != ge::GRAPH_SUCCESS || made.GetString() == nullptr || made.GetString()[0] == '\0') {
        return refuse(std::string(candidate.opType) + " is not defined; install the whole package");
    }
    candidate.describe(target);
    std::vector<ge::Operator> inputs;
    for (const int64_t position : present) {
        const char* input = kInputs[position];
        const std::string dataName = std::string(name.GetString()) + "_" + input;
        ge::Operator data = ge::OperatorFactory::CreateOperator(dataName.c_str(), "Data");
        data.SetAttr("index", position);
        target.SetInput(input, data);
        inputs.push_back(data);
    }
    std::vector<size_t> outputs;
    for (int64_t i = 0; i < outputCount; ++i) {
        outputs.push_back(static_cast<size_t>(i));
    }
    std::vector<std::pair<ge::Operator, std::vector<size_t>>> results;
    results.emplace_back(target, outputs);
    graph.SetInputs(inputs).SetOutputs(results);
    return SUCCESS;
}

}  // namespace

REGISTER_CUSTOM_OP("PartitionedCall")
    .FrameworkType(ONNX)
    .OriginOpType({
        ge::AscendString("atcfuse::1::FusedAttention"),
        ge::AscendString("ai.onnx::8::FusedAttention"),
        ge::AscendString("ai.onnx::9::FusedAttention"),
        ge::AscendString("ai.onnx::10::FusedAttention"),
        ge::AscendString("ai.onnx::11::FusedAttention"),
        ge::AscendString("ai.onnx::12::FusedAttention"),
        ge::AscendString("ai.onnx::13::FusedAttention"),
        ge::AscendString("ai.onnx::14::FusedAttention"),
        ge::AscendString("ai.onnx::15::FusedAttention"),
        ge::AscendString("ai.onnx::16::FusedAttention"),
        ge::AscendString("ai.onnx::17::FusedAttention"),
        ge::AscendString("ai.onnx::18::FusedAttention"),
    })
    .ParseParamsByOperatorFn(parseNode)
    .ParseOpToGraphFn(makeGraph)
    .ImplyType(ImplyType::TVM);

}  // namespace domi
