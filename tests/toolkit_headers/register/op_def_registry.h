// ops: operator definitions; gert: contexts of shape inference, type inference and tiling.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "../graph_types.h"

namespace fe {
/// Stands for the platform's tables: what PlatformAscendC answers.
class PlatFormInfos {
public:
    uint32_t recordedCubeCores = 24;
    uint32_t recordedVectorCores = 48;
};
}  // namespace fe

namespace gert {

class Shape {
public:
    size_t GetDimNum() const { return recorded_.size(); }
    void SetDimNum(const size_t count) { recorded_.resize(count); }
    int64_t GetDim(const size_t index) const { return recorded_.at(index); }
    void SetDim(size_t index, const int64_t value) { recorded_.at(index) = value; }

private:
    std::vector<int64_t> recorded_;
};

class StorageShape {
public:
    const Shape& GetStorageShape() const { return recordedShape; }
    const Shape& GetOriginShape() const { return recordedShape; }

    Shape recordedShape;
};

/// Inputs by their index in the definition; nullptr for an absent one.
class InferShapeContext {
public:
    const Shape* GetInputShape(const size_t index) const;
    const Shape* GetOptionalInputShape(const size_t ir_index) const { return recordedInputs.at(ir_index).get(); }
    Shape* GetOutputShape(const size_t index) { return &recordedOutputs.at(index); }

    std::vector<std::shared_ptr<Shape>> recordedInputs;
    std::vector<Shape> recordedOutputs;
};

class InferDataTypeContext {
public:
    ge::DataType GetInputDataType(const size_t index) const;
    ge::DataType GetOptionalInputDataType(const size_t ir_index) const { return recordedInputs.at(ir_index); }
    ge::graphStatus SetOutputDataType(const size_t index, const ge::DataType type)
    {
        recordedOutputs.at(index) = type;
        return ge::GRAPH_SUCCESS;
    }

    std::vector<ge::DataType> recordedInputs;
    std::vector<ge::DataType> recordedOutputs;
};

class TilingContext {
public:
    const StorageShape* GetInputShape(const size_t index) const;
    const StorageShape* GetOptionalInputShape(const size_t ir_index) const { return recordedInputs.at(ir_index).get(); }
    fe::PlatFormInfos* GetPlatformInfo() const { return recordedPlatform; }
    template <typename T>
    T* GetTilingData()
    {
        recordedTiling.resize(sizeof(T));
        return reinterpret_cast<T*>(recordedTiling.data());
    }
    size_t* GetWorkspaceSizes(const size_t count)
    {
        recordedWorkspaces.resize(count);
        return recordedWorkspaces.data();
    }
    ge::graphStatus SetBlockDim(const uint32_t blocks)
    {
        recordedBlocks = blocks;
        return ge::GRAPH_SUCCESS;
    }
    ge::graphStatus SetTilingKey(const uint64_t key)
    {
        recordedKey = key;
        return ge::GRAPH_SUCCESS;
    }

    std::vector<std::shared_ptr<StorageShape>> recordedInputs;
    fe::PlatFormInfos* recordedPlatform = nullptr;
    std::vector<unsigned char> recordedTiling;
    std::vector<size_t> recordedWorkspaces;
    uint32_t recordedBlocks = 0;
    uint64_t recordedKey = 0;
};

}  // namespace gert

namespace ops {

enum Option { IGNORE = 0, OPTIONAL = 1, REQUIRED = 2, DYNAMIC = 3 };

class OpParamDef {
public:
    OpParamDef& ParamType(Option type)
    {
        recordedOption = type;
        return *this;
    }
    OpParamDef& DataType(std::vector<ge::DataType> types)
    {
        recordedTypes = std::move(types);
        return *this;
    }
    OpParamDef& Format(std::vector<ge::Format>) { return *this; }
    OpParamDef& UnknownShapeFormat(std::vector<ge::Format>) { return *this; }

    std::string recordedName;
    Option recordedOption = IGNORE;
    std::vector<ge::DataType> recordedTypes;
};

class OpAttrDef {
public:
    OpAttrDef& AttrType(Option) { return *this; }
    OpAttrDef& Float(float) { return *this; }
    OpAttrDef& Int(int64_t) { return *this; }
    OpAttrDef& String(const char*) { return *this; }
    OpAttrDef& ListFloat(std::vector<float>) { return *this; }
    OpAttrDef& ListInt(std::vector<int64_t>) { return *this; }

    std::string recordedName;
};

class OpAICoreDef {
public:
    OpAICoreDef& SetTiling(ge::graphStatus (*tiling)(gert::TilingContext*))
    {
        recordedTiling = tiling;
        return *this;
    }
    OpAICoreDef& AddConfig(const char* soc)
    {
        recordedSoc = soc;
        return *this;
    }

    ge::graphStatus (*recordedTiling)(gert::TilingContext*) = nullptr;
    std::string recordedSoc;
};

class OpDef {
public:
    explicit OpDef(const char* name) : recordedName(name) {}
    OpParamDef& Input(const char* name) { return add(recordedInputs, name); }
    OpParamDef& Output(const char* name) { return add(recordedOutputs, name); }
    OpAttrDef& Attr(const char* name) { return add(recordedAttributes, name); }
    OpDef& SetInferShape(ge::graphStatus (*infer)(gert::InferShapeContext*))
    {
        recordedInferShape = infer;
        return *this;
    }
    OpDef& SetInferDataType(ge::graphStatus (*infer)(gert::InferDataTypeContext*))
    {
        recordedInferDataType = infer;
        return *this;
    }
    OpAICoreDef& AICore() { return recordedCore; }

    std::string recordedName;
    std::list<OpParamDef> recordedInputs;
    std::list<OpParamDef> recordedOutputs;
    std::list<OpAttrDef> recordedAttributes;
    ge::graphStatus (*recordedInferShape)(gert::InferShapeContext*) = nullptr;
    ge::graphStatus (*recordedInferDataType)(gert::InferDataTypeContext*) = nullptr;
    OpAICoreDef recordedCore;

private:
    template <typename T>
    static T& add(std::list<T>& all, const char* name)
    {
        all.emplace_back();
        all.back().recordedName = name;
        return all.back();
    }
};

inline std::vector<OpDef>& recordedDefinitions()
{
    static std::vector<OpDef> all;
    return all;
}

}  // namespace ops

#define OP_ADD(Type) static const int g_added_##Type = (::ops::recordedDefinitions().push_back(Type(#Type)), 0)
