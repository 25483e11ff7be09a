// ge: types, statuses, strings, operators as plugins see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace ge {

using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0;
constexpr graphStatus GRAPH_FAILED = 0xffffffffu;

enum DataType { DT_FLOAT = 0, DT_FLOAT16 = 1, DT_INT32 = 3, DT_INT64 = 9, DT_BOOL = 12, DT_BF16 = 27 };
enum Format { FORMAT_ND = 2 };

class AscendString {
public:
    AscendString() = default;
    AscendString(const char* text) : recorded_(text) {}
    const char* GetString() const { return recorded_.c_str(); }

private:
    std::string recorded_;
};

class Operator {
public:
    Operator() = default;
    Operator(const char* name, const char* type) : recordedName(name), recordedType(type) {}
    graphStatus GetName(AscendString& name) const
    {
        name = AscendString(recordedName.c_str());
        return GRAPH_SUCCESS;
    }
    graphStatus GetAttr(const char* name, int64_t& value) const
    {
        const auto found = recordedInts.find(name);
        if (found == recordedInts.end()) {
            return GRAPH_FAILED;
        }
        value = found->second.at(0);
        return GRAPH_SUCCESS;
    }
    graphStatus GetAttr(const char* name, std::vector<int64_t>& value) const
    {
        const auto found = recordedInts.find(name);
        if (found == recordedInts.end()) {
            return GRAPH_FAILED;
        }
        value = found->second;
        return GRAPH_SUCCESS;
    }
    graphStatus GetAttr(const char* name, std::vector<AscendString>& value) const
    {
        const auto found = recordedTextLists.find(name);
        if (found == recordedTextLists.end()) {
            return GRAPH_FAILED;
        }
        value.assign(found->second.begin(), found->second.end());
        return GRAPH_SUCCESS;
    }
    graphStatus GetAttr(const char* name, AscendString& value) const
    {
        const auto found = recordedTexts.find(name);
        if (found == recordedTexts.end()) {
            return GRAPH_FAILED;
        }
        value = AscendString(found->second.c_str());
        return GRAPH_SUCCESS;
    }
    Operator& SetAttr(const char* name, int64_t value)
    {
        recordedInts[name] = {value};
        return *this;
    }
    Operator& SetAttr(const char* name, float value)
    {
        recordedFloats[name] = {value};
        return *this;
    }
    Operator& SetAttr(const char* name, bool value);
    Operator& SetAttr(const char* name, int32_t value);
    Operator& SetAttr(const char* name, const AscendString& value)
    {
        recordedTexts[name] = value.GetString();
        return *this;
    }
    Operator& SetAttr(const char* name, const std::vector<int64_t>& value)
    {
        recordedInts[name] = value;
        return *this;
    }
    Operator& SetAttr(const char* name, const std::vector<float>& value)
    {
        recordedFloats[name] = value;
        return *this;
    }

    Operator& SetAttr(const char* name, const std::vector<AscendString>& value)
    {
        recordedTextLists[name] = value;
        return *this;
    }
    Operator& SetInput(const char* name, const Operator& source)
    {
        recordedInputs.emplace_back(name, source);
        return *this;
    }
    void DynamicInputRegister(const char*, const uint32_t count, bool = true) { recordedInputCount = count; }
    void DynamicOutputRegister(const char*, const uint32_t count, bool = true) { recordedOutputCount = count; }

    std::string recordedName;
    std::string recordedType;
    uint32_t recordedInputCount = 0;
    uint32_t recordedOutputCount = 0;
    std::vector<std::pair<std::string, Operator>> recordedInputs;
    std::map<std::string, std::vector<AscendString>> recordedTextLists;
    std::map<std::string, std::vector<int64_t>> recordedInts;
    std::map<std::string, std::vector<float>> recordedFloats;
    std::map<std::string, std::string> recordedTexts;
};

class OperatorFactory {
public:
    static Operator CreateOperator(const char* name, const char* type) { return Operator(name, type); }
};

class Graph {
public:
    Graph& SetInputs(const std::vector<Operator>& inputs)
    {
        recordedInputs = inputs;
        return *this;
    }
    Graph& SetOutputs(const std::vector<Operator>& outputs);
    Graph& SetOutputs(const std::vector<std::pair<Operator, std::vector<size_t>>>& outputs)
    {
        recordedOutputs = outputs;
        return *this;
    }

    std::vector<Operator> recordedInputs;
    std::vector<std::pair<Operator, std::vector<size_t>>> recordedOutputs;
};

}  // namespace ge
