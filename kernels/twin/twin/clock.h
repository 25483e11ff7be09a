// Who is known to be finished when: vector clocks of a core's pipes.
//
// The scalar unit dispatches instructions in program order; each pipe then runs its own queue. An
// instruction may rely on another one only if a flag, a barrier or a queue made it wait. `known[p][q]` is the
// number of instructions of pipe q that are finished for certain before the next instruction of p starts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "types.h"

namespace twin {

enum class Pipe : uint8_t { S, V, MTE2, MTE3, CUBE };
constexpr int kPipes = 5;

constexpr int index(Pipe pipe) { return static_cast<int>(pipe); }

inline const char* name(Pipe pipe)
{
    constexpr const char* names[kPipes] = {"scalar", "vector", "MTE2", "MTE3", "Matmul"};
    return names[index(pipe)];
}

using Clock = std::array<uint32_t, kPipes>;

inline void join(Clock& into, const Clock& other)
{
    for (int q = 0; q < kPipes; ++q) {
        into[q] = std::max(into[q], other[q]);
    }
}

class Clocks {
public:
    /// Starts the next instruction of a pipe and returns its sequence number (from 1).
    uint32_t issue(Pipe pipe)
    {
        dispatch(pipe);
        if (pipe == Pipe::CUBE) {  // its messages are read after both the scalar unit and MTE2 got here
            const uint32_t scalar = known_[index(Pipe::CUBE)][index(Pipe::S)];
            join(known_[index(pipe)], known_[index(Pipe::MTE2)]);
            known_[index(Pipe::CUBE)][index(Pipe::S)] = scalar;
            known_[index(pipe)][index(pipe)] = issued_[index(pipe)];
        }
        return ++issued_[index(pipe)];
    }

    /// True if instruction `sequence` of `other` is finished before the current instruction of `pipe`.
    bool ordered(Pipe pipe, Pipe other, uint32_t sequence) const
    {
        if (pipe == Pipe::S && other == Pipe::S) {
            return true;
        }
        return known_[index(pipe)][index(other)] >= sequence;
    }

    /// What a waiter learns when everything `pipe` has been given so far is finished.
    Clock completion(Pipe pipe)
    {
        dispatch(pipe);
        Clock clock = known_[index(pipe)];
        clock[index(pipe)] = issued_[index(pipe)];
        return clock;
    }

    void learn(Pipe pipe, const Clock& clock) { join(known_[index(pipe)], clock); }

    void barrier(Pipe pipe)
    {
        dispatch(pipe);
        known_[index(pipe)][index(pipe)] = issued_[index(pipe)];
    }

    /// PIPE_ALL waits for the core's own pipes; asynchronous Matmul calls go on.
    void barrierAll()
    {
        Clock all = issued_;
        all[index(Pipe::CUBE)] = 0;
        for (Clock& known : known_) {
            join(known, all);
        }
    }

private:
    /// A wait of the scalar unit delays every later dispatch. Its own memory accesses do not become visible
    /// by that: S_V and the like are needed for them.
    void dispatch(Pipe pipe)
    {
        const uint32_t scalar = known_[index(pipe)][index(Pipe::S)];
        join(known_[index(pipe)], known_[index(Pipe::S)]);
        if (pipe != Pipe::S) {
            known_[index(pipe)][index(Pipe::S)] = scalar;
        }
    }

    Clock issued_{};
    std::array<Clock, kPipes> known_{};
};

/// The pipes that one HardEvent connects.
struct EventPipes {
    Pipe from;
    Pipe to;
    const char* name;
};

inline EventPipes pipesOf(AscendC::HardEvent event)
{
    using AscendC::HardEvent;
    switch (event) {
        case HardEvent::MTE2_V: return {Pipe::MTE2, Pipe::V, "MTE2_V"};
        case HardEvent::V_MTE2: return {Pipe::V, Pipe::MTE2, "V_MTE2"};
        case HardEvent::MTE3_V: return {Pipe::MTE3, Pipe::V, "MTE3_V"};
        case HardEvent::V_MTE3: return {Pipe::V, Pipe::MTE3, "V_MTE3"};
        case HardEvent::MTE2_MTE3: return {Pipe::MTE2, Pipe::MTE3, "MTE2_MTE3"};
        case HardEvent::MTE3_MTE2: return {Pipe::MTE3, Pipe::MTE2, "MTE3_MTE2"};
        case HardEvent::MTE2_S: return {Pipe::MTE2, Pipe::S, "MTE2_S"};
        case HardEvent::S_MTE2: return {Pipe::S, Pipe::MTE2, "S_MTE2"};
        case HardEvent::MTE3_S: return {Pipe::MTE3, Pipe::S, "MTE3_S"};
        case HardEvent::S_MTE3: return {Pipe::S, Pipe::MTE3, "S_MTE3"};
        case HardEvent::V_S: return {Pipe::V, Pipe::S, "V_S"};
        case HardEvent::S_V: break;
    }
    return {Pipe::S, Pipe::V, "S_V"};
}

constexpr int kHardEvents = 12;
constexpr int kEventIds = 8;

}  // namespace twin
