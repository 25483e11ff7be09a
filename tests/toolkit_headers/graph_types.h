// ge: types, statuses, strings, operators as plugins see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ge {

using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0;
constexpr graphStatus GRAPH_FAILED = 0xffffffffu;

enum DataType { DT_FLOAT = 0, DT_FLOAT16 = 1, DT_BOOL = 12, DT_BF16 = 27 };
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

    std::map<std::string, std::vector<int64_t>> recordedInts;
    std::map<std::string, std::vector<float>> recordedFloats;
    std::map<std::string, std::string> recordedTexts;
};

}  // namespace ge
