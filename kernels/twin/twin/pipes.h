// TPipe, TQue, TBuf and the flags between pipes.
#pragma once

#include "tensor.h"

namespace twin {

constexpr uint32_t kMaxBuffers = 64;
constexpr uint32_t kMaxQueueBuffers = 8;

inline uint32_t roundUp(uint64_t value, uint32_t unit)
{
    return static_cast<uint32_t>((value + unit - 1) / unit * unit);
}

/// Takes the lowest unclaimed event id, as the framework does.
inline int claimEvent(AscendC::HardEvent event, At at)
{
    EventSlot* slots = core(at).events[static_cast<int>(event)];
    for (int id = 0; id < kEventIds; ++id) {
        if (!slots[id].claimed && !slots[id].reserved && !slots[id].set) {
            slots[id].claimed = true;
            return id;
        }
    }
    fail(at, "event-ids", "all %d event ids of %s are taken", kEventIds, pipesOf(event).name);
}

inline int fetchEvent(AscendC::HardEvent event, At at)
{
    const int id = claimEvent(event, at);
    EventSlot& slot = core(at).events[static_cast<int>(event)][id];
    slot.claimed = false;
    slot.fetched = true;
    return id;
}

inline void setFlag(AscendC::HardEvent event, int id, bool byQueue, At at)
{
    Core& current = core(at);
    const EventPipes pipes = pipesOf(event);
    if (id < 0 || id >= kEventIds) {
        fail(at, "event-id", "SetFlag<%s>(%d): ids are 0 to %d", pipes.name, id, kEventIds - 1);
    }
    EventSlot& slot = current.events[static_cast<int>(event)][id];
    if (!byQueue && slot.claimed) {
        fail(at, "event-clash", "SetFlag<%s>(%d): a queue holds this id; take ids from FetchEventID", pipes.name, id);
    }
    if (!byQueue && id >= 6 && !slot.fetched) {
        fail(at, "event-id", "SetFlag<%s>(%d): ids 6 and 7 are reserved", pipes.name, id);
    }
    if (slot.set) {
        fail(at, "flag-set-twice", "SetFlag<%s>(%d): already set at line %d and not waited for", pipes.name, id,
             slot.at.line);
    }
    slot.set = true;
    slot.clock = current.clocks.completion(pipes.from);
    slot.at = at;
}

inline void waitFlag(AscendC::HardEvent event, int id, At at)
{
    Core& current = core(at);
    const EventPipes pipes = pipesOf(event);
    if (id < 0 || id >= kEventIds || !current.events[static_cast<int>(event)][id].set) {
        fail(at, "wait-without-set", "WaitFlag<%s>(%d) waits for ever: no SetFlag came before it", pipes.name, id);
    }
    EventSlot& slot = current.events[static_cast<int>(event)][id];
    slot.set = false;
    current.clocks.learn(pipes.to, slot.clock);
}

/// The pipe that fills a queue's buffers and the pipe that empties them.
struct QueuePipes {
    Pipe producer;
    Pipe consumer;
};

constexpr QueuePipes queuePipes(AscendC::TPosition from, AscendC::TPosition to)
{
    using AscendC::TPosition;
    return {from == TPosition::VECIN ? Pipe::MTE2 : Pipe::V, to == TPosition::VECOUT ? Pipe::MTE3 : Pipe::V};
}

/// The queue's full and empty events; none where producer and consumer are both the vector unit.
struct QueueEvents {
    bool exist;
    AscendC::HardEvent full;
    AscendC::HardEvent empty;
};

constexpr QueueEvents queueEvents(QueuePipes pipes)
{
    using AscendC::HardEvent;
    if (pipes.producer == Pipe::MTE2) {
        return pipes.consumer == Pipe::V ? QueueEvents{true, HardEvent::MTE2_V, HardEvent::V_MTE2}
                                         : QueueEvents{true, HardEvent::MTE2_MTE3, HardEvent::MTE3_MTE2};
    }
    return pipes.consumer == Pipe::MTE3 ? QueueEvents{true, HardEvent::V_MTE3, HardEvent::MTE3_V}
                                        : QueueEvents{false, HardEvent::V_S, HardEvent::S_V};
}

inline int addBuffer(uint64_t bytes, int queue, At at)
{
    Core& current = core(at);
    if (bytes == 0) {
        fail(at, "buffer-size", "InitBuffer of 0 bytes");
    }
    if (current.buffers.size() >= kMaxBuffers) {
        fail(at, "buffer-count", "more than %u buffers in one TPipe", kMaxBuffers);
    }
    const uint32_t rounded = roundUp(bytes, kBlockBytes);
    if (bytes > device().ubBudget || current.ubUsed + rounded > device().ubBudget) {
        fail(at, "ub-budget", "InitBuffer asks for %llu bytes after %u; a kernel may use %u on %s",
             static_cast<unsigned long long>(bytes), current.ubUsed, device().ubBudget, device().family);
    }
    Buffer buffer{};
    buffer.address = current.ubUsed;
    buffer.bytes = rounded;
    buffer.state = queue < 0 ? BufferState::Always : BufferState::Free;
    buffer.queue = queue;
    buffer.freeEvent = -1;
    buffer.changed = at;
    current.ubUsed += rounded;
    world().peaks.ub = std::max<uint64_t>(world().peaks.ub, current.ubUsed);
    current.buffers.push_back(buffer);
    return static_cast<int>(current.buffers.size()) - 1;
}

inline UbView viewOf(int buffer, AscendC::TPosition position, At at)
{
    const Buffer& b = core(at).buffers[buffer];
    return UbView{b.address, b.bytes, buffer, b.generation, position};
}

}  // namespace twin

namespace AscendC {

template <TPosition src, TPosition dst, int32_t depth>
class TQueBind {
    static_assert(src == TPosition::VECIN || src == TPosition::VECOUT || src == TPosition::VECCALC,
                  "the twin models queues in UB only");
    static constexpr twin::QueuePipes kPipes = twin::queuePipes(src, dst);
    static constexpr twin::QueueEvents kEvents = twin::queueEvents(kPipes);

public:
    template <typename T>
    LocalTensor<T> AllocTensor(At at = At::here())
    {
        TWIN_COUNT("AllocTensor");
        started(at);
        twin::Core& core = twin::core(at);
        for (size_t i = 0; i < buffers_.size(); ++i) {
            const int id = buffers_[(next_ + i) % buffers_.size()];
            twin::Buffer& buffer = core.buffers[id];
            if (buffer.state != twin::BufferState::Free) {
                continue;
            }
            next_ = (next_ + i + 1) % buffers_.size();
            if (buffer.freeEvent >= 0) {
                twin::waitFlag(kEvents.empty, buffer.freeEvent, at);
                core.events[static_cast<int>(kEvents.empty)][buffer.freeEvent].claimed = false;
                buffer.freeEvent = -1;
            }
            buffer.state = twin::BufferState::Allocated;
            buffer.changed = at;
            ++buffer.generation;
            core.shadow().setInitialised(buffer.address, buffer.bytes, false);
            return LocalTensor<T>(twin::viewOf(id, src, at));
        }
        twin::fail(at, "queue-alloc", "AllocTensor: all %zu buffers of the queue are in use", buffers_.size());
    }

    template <typename T>
    bool EnQue(const LocalTensor<T>& tensor, At at = At::here())
    {
        TWIN_COUNT("EnQue");
        twin::Buffer& buffer = own(tensor, "EnQue", at);
        if (buffer.state != twin::BufferState::Allocated) {
            twin::fail(at, "queue-enque", "EnQue of a tensor that is not allocated");
        }
        if (queued_.size() >= static_cast<size_t>(depth)) {
            twin::fail(at, "queue-depth", "EnQue: the queue's depth is %d and %zu tensors wait in it", depth,
                       queued_.size());
        }
        Queued entry{tensor.view().buffer, -1};
        if (kEvents.exist) {
            entry.event = twin::claimEvent(kEvents.full, at);
            twin::setFlag(kEvents.full, entry.event, true, at);
        }
        queued_.push_back(entry);
        buffer.state = twin::BufferState::Queued;
        buffer.changed = at;
        return true;
    }

    template <typename T>
    LocalTensor<T> DeQue(At at = At::here())
    {
        TWIN_COUNT("DeQue");
        started(at);
        if (queued_.empty()) {
            twin::fail(at, "queue-empty", "DeQue: nothing was put into the queue");
        }
        const Queued entry = queued_.front();
        queued_.erase(queued_.begin());
        twin::Core& core = twin::core(at);
        if (entry.event >= 0) {
            twin::waitFlag(kEvents.full, entry.event, at);
            core.events[static_cast<int>(kEvents.full)][entry.event].claimed = false;
        }
        core.buffers[entry.buffer].state = twin::BufferState::Dequeued;
        core.buffers[entry.buffer].changed = at;
        return LocalTensor<T>(twin::viewOf(entry.buffer, dst, at));
    }

    template <typename T>
    void FreeTensor(LocalTensor<T>& tensor, At at = At::here())
    {
        TWIN_COUNT("FreeTensor");
        twin::Buffer& buffer = own(tensor, "FreeTensor", at);
        if (buffer.state == twin::BufferState::Free) {
            twin::fail(at, "queue-free-twice", "FreeTensor: already freed at line %d", buffer.changed.line);
        }
        if (buffer.state == twin::BufferState::Queued) {
            twin::fail(at, "queue-free", "FreeTensor: the tensor still lies in the queue");
        }
        if (kEvents.exist) {
            buffer.freeEvent = twin::claimEvent(kEvents.empty, at);
            twin::setFlag(kEvents.empty, buffer.freeEvent, true, at);
        }
        buffer.state = twin::BufferState::Free;
        buffer.changed = at;
    }

private:
    friend class TPipe;

    struct Queued {
        int buffer;
        int event;
    };

    void started(At at) const
    {
        if (buffers_.empty()) {
            twin::fail(at, "queue-not-initialised", "the queue was never given to InitBuffer");
        }
    }

    template <typename T>
    twin::Buffer& own(const LocalTensor<T>& tensor, const char* what, At at) const
    {
        started(at);
        const twin::UbView& view = tensor.view();
        if (std::find(buffers_.begin(), buffers_.end(), view.buffer) == buffers_.end()) {
            twin::fail(at, "queue-foreign", "%s: the tensor is not one of this queue", what);
        }
        twin::Buffer& buffer = twin::core(at).buffers[view.buffer];
        if (view.generation != buffer.generation) {
            twin::fail(at, "use-after-free", "%s: a stale tensor", what);
        }
        if (view.address != buffer.address) {
            twin::fail(at, "queue-foreign", "%s: give the whole tensor, not a part of it", what);
        }
        return buffer;
    }

    std::vector<int> buffers_;
    std::vector<Queued> queued_;
    size_t next_ = 0;
};

template <TPosition position, int32_t depth>
class TQue : public TQueBind<position, position, depth> {};

/// A buffer without any synchronisation of its own.
template <TPosition position = TPosition::VECCALC>
class TBuf {
    static_assert(position == TPosition::VECIN || position == TPosition::VECOUT || position == TPosition::VECCALC,
                  "the twin models buffers in UB only");

public:
    template <typename T>
    LocalTensor<T> Get(At at = At::here())
    {
        return GetWithOffset<T>(bytes_ / sizeof(T), 0, at);
    }
    template <typename T>
    LocalTensor<T> Get(uint32_t length, At at = At::here())
    {
        return GetWithOffset<T>(length, 0, at);
    }
    template <typename T>
    LocalTensor<T> GetWithOffset(uint32_t size, uint32_t offset, At at = At::here())
    {
        if (buffer_ < 0) {
            twin::fail(at, "queue-not-initialised", "the TBuf was never given to InitBuffer");
        }
        twin::UbView view = twin::viewOf(buffer_, position, at);
        const uint64_t bytes = static_cast<uint64_t>(size) * sizeof(T);
        if (offset + bytes > static_cast<uint64_t>(view.length)) {
            twin::fail(at, "ub-range", "TBuf has %lld bytes; %llu from offset %u were asked for",
                       static_cast<long long>(view.length), static_cast<unsigned long long>(bytes), offset);
        }
        view.address += offset;
        view.length = static_cast<int64_t>(bytes);
        return LocalTensor<T>(view);
    }

private:
    friend class TPipe;
    int buffer_ = -1;
    uint32_t bytes_ = 0;
};

}  // namespace AscendC
