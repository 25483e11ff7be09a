// An ONNX node as ATC hands it to ParseParamsByOperatorFn: the fields of its NodeProto are attributes of an operator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atcfuse_attributes.h"
#include "graph/operator.h"

namespace atcfuse {

struct Node {
    std::string name;
    std::string type;  // domain::opset::OpType, the key under which the plugin was found
    Attributes attributes;

    /// False where a field is missing or the attributes are not JSON.
    bool read(const ge::Operator& source)
    {
        ge::AscendString field;
        if (source.GetAttr("op_type", field) != ge::GRAPH_SUCCESS) {
            return false;
        }
        type = field.GetString();
        if (source.GetAttr("name", field) == ge::GRAPH_SUCCESS) {
            name = field.GetString();
        }
        return source.GetAttr("input", inputs_) == ge::GRAPH_SUCCESS &&
               source.GetAttr("output", outputs_) == ge::GRAPH_SUCCESS &&
               source.GetAttr("attribute", field) == ge::GRAPH_SUCCESS && attributes.parse(field.GetString());
    }

    int64_t inputs() const { return static_cast<int64_t>(inputs_.size()); }

    int64_t outputs() const { return static_cast<int64_t>(outputs_.size()); }

    /// Positions of the inputs that are there: an absent one has an empty name.
    std::vector<int64_t> presentInputs() const
    {
        std::vector<int64_t> positions;
        for (size_t i = 0; i < inputs_.size(); ++i) {
            if (inputs_[i].GetString() != nullptr && inputs_[i].GetString()[0] != '\0') {
                positions.push_back(static_cast<int64_t>(i));
            }
        }
        return positions;
    }

private:
    std::vector<ge::AscendString> inputs_;
    std::vector<ge::AscendString> outputs_;
};

}  // namespace atcfuse
