// TPipe and the free synchronisation functions.
#pragma once

#include "pipes.h"

namespace AscendC {

/// The owner of a core's on-chip buffers. One a kernel.
class TPipe {
public:
    TPipe(At at = At::here())
    {
        twin::Core& core = twin::core(at);
        if (core.pipeMade) {
            twin::fail(at, "tpipe-twice", "a kernel has one TPipe");
        }
        core.pipeMade = true;
        current() = this;
    }
    ~TPipe() { current() = nullptr; }
    TPipe(const TPipe&) = delete;
    TPipe& operator=(const TPipe&) = delete;

    template <TPosition src, TPosition dst, int32_t depth>
    bool InitBuffer(TQueBind<src, dst, depth>& queue, twin::Narrow<uint8_t> count, uint32_t bytes, At at = At::here())
    {
        TWIN_COUNT("InitBuffer");
        if (!queue.buffers_.empty()) {
            twin::fail(at, "init-twice", "InitBuffer was already called for this queue");
        }
        twin::Core& core = twin::core(at);
        uint32_t& inPosition = core.queueBuffers[static_cast<int>(src)];
        inPosition += static_cast<uint32_t>(count.raw());
        if (count.raw() < 1 || inPosition > twin::kMaxQueueBuffers) {
            twin::fail(at, "queue-buffers", "the queues of one TPosition have %u buffers; 1 to %u are possible",
                       inPosition, twin::kMaxQueueBuffers);
        }
        for (int64_t i = 0; i < count.raw(); ++i) {
            queue.buffers_.push_back(twin::addBuffer(bytes, static_cast<int>(src), at));
        }
        return true;
    }

    template <TPosition position>
    bool InitBuffer(TBuf<position>& buffer, uint32_t bytes, At at = At::here())
    {
        TWIN_COUNT("InitBuffer");
        if (buffer.buffer_ >= 0) {
            twin::fail(at, "init-twice", "InitBuffer was already called for this TBuf");
        }
        buffer.buffer_ = twin::addBuffer(bytes, -1, at);
        buffer.bytes_ = bytes;
        return true;
    }

    TEventID FetchEventID(HardEvent event, At at = At::here()) { return fetch(event, at); }
    template <HardEvent event>
    TEventID FetchEventID(At at = At::here())
    {
        return fetch(event, at);
    }
    template <HardEvent event>
    TEventID AllocEventID(At at = At::here())
    {
        const int id = twin::fetchEvent(event, at);
        twin::core(at).events[static_cast<int>(event)][id].reserved = true;
        return static_cast<TEventID>(id);
    }
    template <HardEvent event>
    void ReleaseEventID(TEventID id, At at = At::here())
    {
        twin::EventSlot* slots = twin::core(at).events[static_cast<int>(event)];
        if (id >= 0 && id < twin::kEventIds && slots[id].reserved) {
            slots[id].reserved = false;
            return;
        }
        twin::fail(at, "event-id", "ReleaseEventID(%d): not held", id);
    }

    static TPipe*& current()
    {
        static TPipe* pipe = nullptr;
        return pipe;
    }

private:
    static TEventID fetch(HardEvent event, At at) { return static_cast<TEventID>(twin::fetchEvent(event, at)); }
};

inline TPipe* GetTPipePtr() { return TPipe::current(); }

template <HardEvent event>
void SetFlag(int32_t id, At at = At::here())
{
    TWIN_COUNT("SetFlag");
    twin::setFlag(event, id, false, at);
}

template <HardEvent event>
void WaitFlag(int32_t id, At at = At::here())
{
    TWIN_COUNT("WaitFlag");
    twin::waitFlag(event, id, at);
}

template <pipe_t pipe>
void PipeBarrier(At at = At::here())
{
    TWIN_COUNT("PipeBarrier");
    twin::Clocks& clocks = twin::core(at).clocks;
    switch (pipe) {
        case PIPE_V: clocks.barrier(twin::Pipe::V); break;
        case PIPE_MTE2: clocks.barrier(twin::Pipe::MTE2); break;
        case PIPE_MTE3: clocks.barrier(twin::Pipe::MTE3); break;
        case PIPE_ALL: clocks.barrierAll(); break;
    }
}

}  // namespace AscendC
