// GlobalTensor and LocalTensor: typed views. They carry where they point; instructions check what they touch.
#pragma once

#include <algorithm>

#include "core.h"

namespace twin {

/// A view of UB bytes. `length` may turn negative through operator[]; instructions refuse that.
struct UbView {
    int64_t address = 0;
    int64_t length = 0;
    int buffer = -1;
    uint32_t generation = 0;
    AscendC::TPosition position = AscendC::TPosition::VECCALC;
};

/// Checks that bytes [first, first + bytes) of a view may be touched by an instruction now.
inline void checkView(const UbView& view, int64_t bytes, uint32_t alignment, const char* operand,
                      const Instruction& instruction)
{
    const At at = instruction.at();
    if (view.buffer < 0) {
        fail(at, "tensor-empty", "%s: %s is a LocalTensor that no queue or buffer gave", instruction.name(), operand);
    }
    const Buffer& buffer = core(at).buffers[view.buffer];
    if (buffer.state == BufferState::Free || (buffer.queue >= 0 && view.generation != buffer.generation)) {
        fail(at, "use-after-free", "%s: %s was freed at line %d", instruction.name(), operand, buffer.changed.line);
    }
    if (buffer.state == BufferState::Queued) {
        fail(at, "use-while-queued", "%s: %s lies in its queue since line %d; DeQue first", instruction.name(), operand,
             buffer.changed.line);
    }
    if (view.length < 0 || bytes > view.length) {
        fail(at, "ub-range", "%s: touches %lld bytes of %s, which has %lld", instruction.name(),
             static_cast<long long>(bytes), operand, static_cast<long long>(view.length));
    }
    if (view.address % alignment != 0) {
        fail(at, "ub-alignment", "%s: %s starts at UB address %lld, not a multiple of %u", instruction.name(), operand,
             static_cast<long long>(view.address), alignment);
    }
}

/// Refuses two ranges that share a byte.
inline void refuseOverlap(const UbView& a, uint64_t aBytes, const UbView& b, uint64_t bBytes, const char* what,
                          const Instruction& instruction)
{
    const auto aStart = static_cast<uint64_t>(a.address);
    const auto bStart = static_cast<uint64_t>(b.address);
    if (aStart < bStart + bBytes && bStart < aStart + aBytes) {
        fail(instruction.at(), "overlap", "%s: %s", instruction.name(), what);
    }
}

}  // namespace twin

namespace AscendC {

using twin::At;

template <typename T>
class LocalTensor {
public:
    using PrimType = T;

    LocalTensor() = default;
    explicit LocalTensor(const twin::UbView& view) : view_(view) {}

    LocalTensor operator[](uint32_t offset) const
    {
        twin::UbView view = view_;
        view.address += static_cast<int64_t>(offset) * static_cast<int64_t>(sizeof(T));
        view.length -= static_cast<int64_t>(offset) * static_cast<int64_t>(sizeof(T));
        return LocalTensor(view);
    }

    template <typename U>
    LocalTensor<U> ReinterpretCast() const
    {
        return LocalTensor<U>(view_);
    }

    uint32_t GetSize() const { return static_cast<uint32_t>(std::max<int64_t>(view_.length, 0) / sizeof(T)); }

    T GetValue(uint32_t index, At at = At::here()) const
    {
        TWIN_COUNT("GetValue");
        twin::Instruction instruction("GetValue", twin::Pipe::S, at);
        const int64_t address = element(index, instruction);
        instruction.checkUbRead(address, sizeof(T));
        instruction.noteUbRead(address, sizeof(T));
        T value;
        std::memcpy(&value, instruction.ub(address), sizeof value);
        return value;
    }

    template <typename V>
    void SetValue(uint32_t index, V value, At at = At::here()) const
    {
        TWIN_COUNT("SetValue");
        twin::Instruction instruction("SetValue", twin::Pipe::S, at);
        const int64_t address = element(index, instruction);
        instruction.checkUbWrite(address, sizeof(T));
        instruction.noteUbWrite(address, sizeof(T));
        const T stored = static_cast<T>(value);
        std::memcpy(instruction.ub(address), &stored, sizeof stored);
    }

    const twin::UbView& view() const { return view_; }

private:
    int64_t element(uint32_t index, const twin::Instruction& instruction) const
    {
        twin::checkView(view_, (static_cast<int64_t>(index) + 1) * sizeof(T), sizeof(T), "the tensor", instruction);
        return view_.address + static_cast<int64_t>(index) * sizeof(T);
    }

    twin::UbView view_;
};

template <typename T>
class GlobalTensor {
public:
    using PrimType = T;

    void SetGlobalBuffer(__gm__ T* buffer, uint64_t size)
    {
        data_ = buffer;
        limit_ = static_cast<int64_t>(size);
    }
    void SetGlobalBuffer(__gm__ T* buffer)
    {
        data_ = buffer;
        limit_ = kNoLimit;
    }

    GlobalTensor operator[](uint64_t offset) const
    {
        GlobalTensor tensor = *this;
        tensor.data_ += offset;
        if (limit_ != kNoLimit) {
            tensor.limit_ = limit_ - static_cast<int64_t>(offset);
        }
        return tensor;
    }

    const __gm__ T* GetPhyAddr() const { return data_; }

    /// Scalar read. Only inputs: the scalar cache would not see what this kernel writes.
    T GetValue(uint64_t index, At at = At::here()) const
    {
        TWIN_COUNT("GlobalTensor.GetValue");
        twin::Instruction instruction("GetValue", twin::Pipe::S, at);
        uint64_t offset = 0;
        twin::GlobalMemory& memory = locate(index * sizeof(T), sizeof(T), instruction, offset);
        if (memory.kind != twin::TensorClass::Input) {
            twin::fail(at, "gm-scalar-read", "GetValue of %s tensor %s: its scalar cache line may be stale",
                       twin::name(memory.kind), memory.name.c_str());
        }
        instruction.checkGmRead(memory, offset, sizeof(T));
        memory.traffic.readByVector += sizeof(T);
        T value;
        std::memcpy(&value, memory.data + offset, sizeof value);
        return value;
    }

    /// The registered tensor that holds `bytes` bytes from `from` bytes after the start of this view.
    twin::GlobalMemory& locate(uint64_t from, uint64_t bytes, const twin::Instruction& instruction,
                               uint64_t& offset) const
    {
        if (data_ == nullptr) {
            twin::fail(instruction.at(), "gm-null", "%s: the GlobalTensor has no buffer", instruction.name());
        }
        if (limit_ != kNoLimit && static_cast<int64_t>(from + bytes) > limit_ * static_cast<int64_t>(sizeof(T))) {
            twin::fail(instruction.at(), "gm-range",
                       "%s: touches byte %llu of a GlobalTensor that was set to %lld bytes", instruction.name(),
                       static_cast<unsigned long long>(from + bytes - 1),
                       static_cast<long long>(limit_ * static_cast<int64_t>(sizeof(T))));
        }
        const auto* first = reinterpret_cast<const uint8_t*>(data_) + from;
        twin::GlobalMemory* memory = twin::world().memories.find(first);
        if (memory == nullptr) {
            twin::fail(instruction.at(), "gm-range", "%s: the address lies in no registered tensor",
                       instruction.name());
        }
        offset = static_cast<uint64_t>(first - memory->data);
        if (offset % sizeof(T) != 0) {
            twin::fail(instruction.at(), "gm-alignment", "%s: byte %llu of %s is not aligned to its elements",
                       instruction.name(), static_cast<unsigned long long>(offset), memory->name.c_str());
        }
        return *memory;
    }

private:
    static constexpr int64_t kNoLimit = INT64_MAX;

    __gm__ T* data_ = nullptr;
    int64_t limit_ = kNoLimit;
};

}  // namespace AscendC
