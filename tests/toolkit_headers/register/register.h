// domi: registration of framework plugins.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "../graph_types.h"

namespace domi {

using Status = uint32_t;
constexpr Status SUCCESS = 0;
constexpr Status FAILED = 0xffffffffu;

enum FrameworkType { CAFFE = 0, TENSORFLOW = 3, ONNX = 5 };
enum class ImplyType : unsigned int { BUILDIN = 0, TVM };

class OpRegistrationData {
public:
    using Parse = std::function<Status(const ge::Operator&, ge::Operator&)>;
    using ToGraph = std::function<Status(const ge::Operator&, ge::Graph&)>;

    explicit OpRegistrationData(const char* type) : recordedType(type) {}
    OpRegistrationData& FrameworkType(const domi::FrameworkType& framework)
    {
        recordedFramework = framework;
        return *this;
    }
    OpRegistrationData& OriginOpType(const std::vector<ge::AscendString>& types)
    {
        recordedOrigins = types;
        return *this;
    }
    OpRegistrationData& OriginOpType(const std::initializer_list<std::string>& types);
    OpRegistrationData& OriginOpType(const std::string& type);
    OpRegistrationData& OriginOpType(const char* type);
    OpRegistrationData& ParseParamsByOperatorFn(const Parse& parse)
    {
        recordedParse = parse;
        return *this;
    }
    OpRegistrationData& ParseOpToGraphFn(const ToGraph& to_graph)
    {
        recordedToGraph = to_graph;
        return *this;
    }
    OpRegistrationData& ImplyType(const domi::ImplyType&) { return *this; }

    std::string recordedType;
    domi::FrameworkType recordedFramework = CAFFE;
    std::vector<ge::AscendString> recordedOrigins;
    Parse recordedParse;
    ToGraph recordedToGraph;
};

inline std::vector<OpRegistrationData>& recordedRegistrations()
{
    static std::vector<OpRegistrationData> all;
    return all;
}

class OpReceiver {
public:
    OpReceiver(const OpRegistrationData& data) { recordedRegistrations().push_back(data); }
};

}  // namespace domi

#define REGISTER_CUSTOM_OP(name) static const ::domi::OpReceiver g_receiver = ::domi::OpRegistrationData(name)
