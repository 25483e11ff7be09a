// The harness's report as one JSON object. Included by harness.h.
#pragma once

#include <sstream>

namespace twin {

inline std::string quoted(const std::string& text)
{
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += c;
    }
    return out + "\"";
}

/// Bytes of a memory that hold a value, and the end of the last of them.
struct Footprint {
    uint64_t touched = 0;
    uint64_t end = 0;
};

inline Footprint footprintOf(const GlobalMemory& memory)
{
    Footprint footprint;
    for (uint64_t b = 0; b < memory.blockCount(); ++b) {
        const uint32_t bits = memory.blocks[b].initialised;
        footprint.touched += static_cast<uint64_t>(__builtin_popcount(bits));
        if (bits != 0) {
            footprint.end = b * kBlockBytes + 32u - static_cast<uint64_t>(__builtin_clz(bits));
        }
    }
    return footprint;
}

inline std::string trafficJson(const GlobalMemory& memory)
{
    std::ostringstream out;
    out << "{\"name\": " << quoted(memory.name) << ", \"class\": " << quoted(name(memory.kind))
        << ", \"bytes\": " << memory.bytes << ", \"read_by_vector\": " << memory.traffic.readByVector
        << ", \"read_by_cube\": " << memory.traffic.readByCube
        << ", \"written_by_vector\": " << memory.traffic.writtenByVector
        << ", \"written_by_cube\": " << memory.traffic.writtenByCube << "}";
    return out.str();
}

inline void Harness::report(std::ostream& out) const
{
    const World& w = world();
    uint64_t tensorRead = 0, tensorWritten = 0, workspaceRead = 0, workspaceWritten = 0, compulsory = 0;
    Footprint footprint;
    std::string tensors;
    for (const GlobalMemory& memory : world().memories.all()) {
        const Traffic& t = memory.traffic;
        const bool tensor = memory.kind == TensorClass::Input || memory.kind == TensorClass::Output;
        if (!tensor && memory.kind != TensorClass::Workspace) {
            continue;
        }
        (tensor ? tensorRead : workspaceRead) += t.readByVector + t.readByCube;
        (tensor ? tensorWritten : workspaceWritten) += t.writtenByVector + t.writtenByCube;
        compulsory += tensor ? memory.bytes : 0;
        if (!tensor) {
            footprint = footprintOf(memory);
        }
        tensors += (tensors.empty() ? "\n    " : ",\n    ") + trafficJson(memory);
    }
    out << "{\n  \"schema\": \"atcfuse.twin/1\",\n  \"kernel\": " << quoted(w.launch.kernel)
        << ",\n  \"soc\": " << quoted(w.launch.soc) << ",\n  \"kernel_type\": " << quoted(name(w.launch.type))
        << ",\n  \"blocks\": " << w.launch.blocks << ",\n  \"vector_cores\": " << cores_ << ",\n  \"tensors\": ["
        << tensors << "\n  ],\n  \"compulsory_bytes\": " << compulsory << ",\n  \"tensor_bytes_read\": " << tensorRead
        << ",\n  \"tensor_bytes_written\": " << tensorWritten << ",\n  \"workspace_bytes_read\": " << workspaceRead
        << ",\n  \"workspace_bytes_written\": " << workspaceWritten
        << ",\n  \"workspace_footprint\": " << footprint.touched << ",\n  \"workspace_end\": " << footprint.end
        << ",\n  \"messages\": " << w.messages << ",\n  \"message_bytes\": " << w.messageBytes
        << ",\n  \"half_overflows\": " << w.halfOverflows << ",\n  \"peak\": {\"ub\": " << w.peaks.ub
        << ", \"l1\": " << w.peaks.l1 << ", \"l0a\": " << w.peaks.l0a << ", \"l0b\": " << w.peaks.l0b
        << ", \"l0c\": " << w.peaks.l0c << "},\n  \"calls\": {";
    const char* separator = "";
    for (const auto& [call, count] : w.calls) {
        out << separator << quoted(call) << ": " << count;
        separator = ", ";
    }
    out << "}\n}\n";
}

}  // namespace twin
