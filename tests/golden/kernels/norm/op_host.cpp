// Definition, shapes, types and tiling of AtcfuseLayerNormQKV (ONNX FusedLayerNormQKV).
#include "atcfuse_host.h"

#include "../op_kernel/atcfuse_layer_norm_qkv_tiling.h"
#include "../op_kernel/atcfuse_layer_norm_qkv_host.h"

namespace {

constexpr const char* kOp = "AtcfuseLayerNormQKV";
constexpr size_t kInputs = 11;
constexpr size_t kOutputs = 5;
constexpr size_t kGiven[] = {0, 1, 2, 4};  // the outputs that the node has

}  // namespace

namespace optiling {

static ge::graphStatus TilingFunc(gert::TilingContext* context)
{
    namespace host = atcfuse_layer_norm_qkv_tiling;
    atcfuse::Shape inputs[kInputs];
    for (size_t i = 0; i < kInputs; ++i) {
        const gert::StorageShape* shape = context->GetOptionalInputShape(i);
        if (!atcfuse::toShape(shape == nullptr ? nullptr : &shape->GetStorageShape(), inputs[i])) {
            return atcfuse::refuse(kOp, "an input has more than 8 axes");
        }
    }
    const platform_ascendc::PlatformAscendC platform(context->GetPlatformInfo());
    auto* tiling = context->GetTilingData<host::Tiling>();
    size_t* workspaces = context->GetWorkspaceSizes(1);
    if (tiling == nullptr || workspaces == nullptr) {
        return atcfuse::refuse(kOp, "no room for tiling data or workspace sizes");
    }
    atcfuse::Launch launch{};
    const char* refusal = host::computeTiling(atcfuse::describe(platform), inputs, *tiling, launch);
    if (refusal != nullptr) {
        return atcfuse::refuse(kOp, refusal);
    }
    context->SetBlockDim(static_cast<uint32_t>(launch.blocks));
    context->SetTilingKey(launch.tilingKey);
    workspaces[0] = platform.GetLibApiWorkSpaceSize() + static_cast<size_t>(launch.workspaceBytes);
    return ge::GRAPH_SUCCESS;
}

}  // namespace optiling

namespace ge {

static graphStatus InferShape(gert::InferShapeContext* context)
{
    atcfuse::Shape inputs[kInputs];
    atcfuse::Shape outputs[kOutputs];
    for (atcfuse::Shape& output : outputs) {
        atcfuse::toShape(nullptr, output);
    }
    bool known = true;
    for (size_t i = 0; i < kInputs; ++i) {
        const gert::Shape* shape = context->GetOptionalInputShape(i);
        known = known && (shape == nullptr || !atcfuse::hasUnknownRank(*shape));
        if (!atcfuse::toShape(shape, inputs[i])) {
            return atcfuse::refuse(kOp, "an input has more than 8 axes");
        }
    }
    const char* refusal = known ? atcfuse_layer_norm_qkv_tiling::inferShapes(inputs, outputs) : nullptr;
    if (refusal != nullptr) {
        return atcfuse::refuse(kOp, refusal);
    }
    size_t position = 0;
    for (const size_t output : kGiven) {
        gert::Shape* shape = context->GetOutputShape(position++);
        if (shape == nullptr) {
            return GRAPH_FAILED;
        }
        if (known) {
            atcfuse::fromShape(outputs[output], *shape);
        } else {
            shape->SetDimNum(1);
            shape->SetDim(0, atcfuse::kUnknownRank);
        }
    }
    return GRAPH_SUCCESS;
}

static graphStatus InferDataType(gert::InferDataTypeContext* context)
{
    context->SetOutputDataType(0, context->GetOptionalInputDataType(0));
    context->SetOutputDataType(1, context->GetOptionalInputDataType(0));
    context->SetOutputDataType(2, context->GetOptionalInputDataType(0));
    context->SetOutputDataType(3, context->GetOptionalInputDataType(0));
    return GRAPH_SUCCESS;
}

}  // namespace ge

namespace ops {

class AtcfuseLayerNormQKV : public OpDef {
public:
    explicit AtcfuseLayerNormQKV(const char* name) : OpDef(name)
    {
        this->Input("x")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("gamma")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("beta")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("w1")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("w2")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("w3")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("w4")
            .ParamType(OPTIONAL)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("b1")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("b2")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("b3")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Input("b4")
            .ParamType(OPTIONAL)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Output("y1")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Output("y2")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Output("y3")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Output("normalized")
            .ParamType(REQUIRED)
            .DataType({ge::DT_FLOAT16})
            .Format({ge::FORMAT_ND})
            .UnknownShapeFormat({ge::FORMAT_ND});
        this->Attr("norm").AttrType(OPTIONAL).String("layer_norm");
        this->Attr("epsilon").AttrType(OPTIONAL).Float(9.99999996e-13f);
        this->Attr("num_projections").AttrType(OPTIONAL).Int(3LL);
        this->Attr("transposed").AttrType(OPTIONAL).ListInt({0LL, 0LL, 0LL});
        this->SetInferShape(ge::InferShape).SetInferDataType(ge::InferDataType);
        this->AICore().SetTiling(optiling::TilingFunc).AddConfig("ascend910b");
    }
};

OP_ADD(AtcfuseLayerNormQKV);

}  // namespace ops
