// Order between pipes, and event discipline.
#include "cases.h"

namespace {

struct Buffers {
    TPipe pipe;
    TBuf<TPosition::VECCALC> first, second;
    LocalTensor<float> a, b;

    Buffers()
    {
        a = filled(pipe, first, 64, 1.0f);
        b = filled(pipe, second, 64, 2.0f);
    }
};

}  // namespace

CASE(load_then_compute, "missing-sync")
{
    Buffers u;
    DataCopy(u.a, rig.f(), 64);
    if (!broken) {
        order<HardEvent::MTE2_V>();
    }
    Adds(u.b, u.a, 1.0f, 64);  // caught
}

CASE(compute_then_load_over_it, "missing-sync")
{
    Buffers u;
    Adds(u.b, u.a, 1.0f, 64);
    if (!broken) {
        order<HardEvent::V_MTE2>();
    }
    DataCopy(u.a, rig.f(), 64);  // caught
}

CASE(compute_then_store, "missing-sync")
{
    Buffers u;
    Adds(u.a, u.b, 1.0f, 64);
    if (!broken) {
        order<HardEvent::V_MTE3>();
    }
    DataCopy(rig.yf(), u.a, 64);  // caught
}

CASE(store_then_compute_over_it, "missing-sync")
{
    Buffers u;
    DataCopy(rig.yf(), u.a, 64);
    if (!broken) {
        order<HardEvent::MTE3_V>();
    }
    Adds(u.a, u.b, 1.0f, 64);  // caught
}

CASE(clear_then_load, "missing-sync")
{
    Buffers u;
    Duplicate(u.a, 0.0f, 64);
    if (!broken) {
        order<HardEvent::V_MTE2>();
    }
    DataCopyPad(u.a, rig.f(), DataCopyExtParams(1, 20, 0, 0, 0), DataCopyPadExtParams<float>());  // caught
}

CASE(queue_without_enqueue, "missing-sync")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(queue, 1, 64);
    pipe.InitBuffer(buffer, 64);
    LocalTensor<half> x = queue.AllocTensor<half>();
    DataCopy(x, rig.x(), 32);
    if (!broken) {
        queue.EnQue(x);
        x = queue.DeQue<half>();
    }
    Adds(buffer.Get<half>(), x, half(1.0f), 32);  // caught
    queue.FreeTensor(x);
}

CASE(output_queue_without_dequeue, "missing-sync")
{
    TPipe pipe;
    TQue<TPosition::VECOUT, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> y = queue.AllocTensor<half>();
    Duplicate(y, half(1.0f), 32);
    if (!broken) {
        queue.EnQue(y);
        y = queue.DeQue<half>();
    }
    DataCopy(rig.y(), y, 32);  // caught
    queue.FreeTensor(y);
}

CASE(bound_queue_without_dequeue, "missing-sync")
{
    TPipe pipe;
    TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> x = queue.AllocTensor<half>();
    DataCopy(x, rig.x(), 32);
    if (!broken) {
        queue.EnQue(x);
        x = queue.DeQue<half>();
    }
    DataCopy(rig.y(), x, 32);  // caught
    queue.FreeTensor(x);
}

CASE(buffer_of_two_uses_without_barrier, "missing-barrier")
{
    TPipe pipe;
    TQue<TPosition::VECOUT, 1> queue;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(queue, 2, 64);
    LocalTensor<half> t = filled(pipe, buffer, 32, half(1.0f));
    for (int i = 0; i < 2; ++i) {  // two buffers: the queue's flags do not order the second round after the first
        LocalTensor<half> y = queue.AllocTensor<half>();
        Adds(t, t, half(1.0f), 32);  // caught
        PipeBarrier<PIPE_V>();
        Muls(y, t, half(2.0f), 32);
        queue.EnQue(y);
        y = queue.DeQue<half>();
        DataCopy(rig.y()[i * 32], y, 32);
        queue.FreeTensor(y);
        if (!broken) {
            PipeBarrier<PIPE_V>();
        }
    }
}

CASE(scalar_reads_too_early, "missing-sync")
{
    Buffers u;
    Adds(u.a, u.b, 1.0f, 64);
    if (!broken) {
        order<HardEvent::V_S>();
    }
    (void)u.a.GetValue(3);  // caught
}

CASE(scalar_reads_a_load_after_dequeue, "missing-sync")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> x = queue.AllocTensor<half>();
    DataCopy(x, rig.x(), 32);
    queue.EnQue(x);
    x = queue.DeQue<half>();
    if (!broken) {
        order<HardEvent::MTE2_S>();
    }
    (void)x.GetValue(0);  // caught
    queue.FreeTensor(x);
}

CASE(scalar_writes_then_compute, "missing-sync")
{
    Buffers u;
    u.a.SetValue(0, 5.0f);
    if (!broken) {
        order<HardEvent::S_V>();
    }
    Adds(u.b, u.a, 1.0f, 64);  // caught
}

CASE(scalar_reads_then_compute_over_it, "missing-sync")
{
    Buffers u;
    (void)u.a.GetValue(0);
    if (!broken) {
        order<HardEvent::S_V>();
    }
    Duplicate(u.a, 0.0f, 64);  // caught
}

CASE(store_then_load_back, "missing-sync")
{
    Buffers u;
    DataCopy(rig.ring<float>(), u.a, 64);
    if (!broken) {
        order<HardEvent::MTE3_MTE2>();
    }
    DataCopy(u.b, rig.ring<float>(), 64);  // caught
}

CASE(dependent_vector_instructions, "missing-barrier")
{
    Buffers u;
    Adds(u.a, u.b, 1.0f, 64);
    if (!broken) {
        PipeBarrier<PIPE_V>();
    }
    Mul(u.b, u.a, u.a, 64);  // caught
}

CASE(write_after_read, "missing-barrier")
{
    Buffers u;
    Adds(u.a, u.b, 1.0f, 64);
    if (!broken) {
        PipeBarrier<PIPE_V>();
    }
    Duplicate(u.b, 0.0f, 64);  // caught
}

CASE(read_then_in_place, "missing-barrier")
{
    Buffers u;
    Mul(u.a, u.b, u.b, 64);
    if (!broken) {
        PipeBarrier<PIPE_V>();
    }
    Muls(u.b, u.b, 2.0f, 64);  // caught
}

CASE(barrier_missing_at_loop_end, "missing-barrier")
{
    Buffers u;
    for (int i = 0; i < 2; ++i) {
        Duplicate(u.a, 1.0f * i, 64);  // caught
        PipeBarrier<PIPE_V>();
        Adds(u.b, u.a, 1.0f, 64);
        if (!broken) {
            PipeBarrier<PIPE_V>();
        }
    }
}

CASE(two_stores_to_one_place, "missing-barrier")
{
    Buffers u;
    DataCopy(rig.yf(), u.a, 64);
    if (!broken) {
        PipeBarrier<PIPE_MTE3>();
    }
    DataCopy(rig.yf(), u.b, 64);  // caught
}

CASE(flag_set_twice, "flag-set-twice")
{
    TPipe pipe;
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
    if (!broken) {
        WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
    }
    SetFlag<HardEvent::MTE2_V>(EVENT_ID0);  // caught
    WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
}

CASE(wait_without_set, "wait-without-set")
{
    TPipe pipe;
    if (!broken) {
        SetFlag<HardEvent::V_MTE3>(EVENT_ID1);
    }
    WaitFlag<HardEvent::V_MTE3>(EVENT_ID1);  // caught
}

CASE(set_without_wait, "set-without-wait")
{
    TPipe pipe;
    SetFlag<HardEvent::V_MTE3>(EVENT_ID1);  // caught
    if (!broken) {
        WaitFlag<HardEvent::V_MTE3>(EVENT_ID1);
    }
}

CASE(reserved_event_id, "event-id")
{
    TPipe pipe;
    const int id = broken ? 6 : 5;
    SetFlag<HardEvent::V_MTE3>(id);  // caught
    WaitFlag<HardEvent::V_MTE3>(id);
}

CASE(event_of_a_queue, "event-clash")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> x = queue.AllocTensor<half>();
    DataCopy(x, rig.x(), 32);
    queue.EnQue(x);
    const int32_t id = broken ? 0 : pipe.FetchEventID(HardEvent::MTE2_V);
    SetFlag<HardEvent::MTE2_V>(id);  // caught
    WaitFlag<HardEvent::MTE2_V>(id);
    x = queue.DeQue<half>();
    queue.FreeTensor(x);
}

CASE(nine_events, "event-ids")
{
    TPipe pipe;
    TEventID ids[9];
    const int count = broken ? 9 : 8;
    for (int i = 0; i < count; ++i) {
        ids[i] = pipe.AllocEventID<HardEvent::V_S>();  // caught
    }
    for (int i = 0; i < count; ++i) {
        pipe.ReleaseEventID<HardEvent::V_S>(ids[i]);
    }
}
