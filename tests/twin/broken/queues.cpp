// Queue and buffer discipline.
#include "cases.h"

CASE(alloc_beyond_num, "queue-alloc")
{
    TPipe pipe;
    TQue<TPosition::VECCALC, 2> queue;
    pipe.InitBuffer(queue, 2, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    LocalTensor<half> b = queue.AllocTensor<half>();
    if (!broken) {
        queue.FreeTensor(a);
    }
    LocalTensor<half> c = queue.AllocTensor<half>();  // caught
    queue.FreeTensor(b);
    queue.FreeTensor(c);
}

CASE(free_twice, "queue-free-twice")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    queue.FreeTensor(a);
    if (broken) {
        queue.FreeTensor(a);  // caught
    }
}

CASE(dequeue_empty, "queue-empty")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    if (!broken) {
        queue.EnQue(a);
    }
    LocalTensor<half> b = queue.DeQue<half>();  // caught
    queue.FreeTensor(b);
}

CASE(tensor_never_freed, "queue-not-freed")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    queue.EnQue(a);
    LocalTensor<half> b = queue.DeQue<half>();  // caught
    if (!broken) {
        queue.FreeTensor(b);
    }
}

CASE(enqueue_beyond_depth, "queue-depth")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 2, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    LocalTensor<half> b = queue.AllocTensor<half>();
    queue.EnQue(a);
    if (!broken) {
        LocalTensor<half> c = queue.DeQue<half>();
        queue.FreeTensor(c);
    }
    queue.EnQue(b);  // caught
    LocalTensor<half> d = queue.DeQue<half>();
    queue.FreeTensor(d);
}

CASE(enqueue_twice, "queue-enque")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    queue.EnQue(a);
    LocalTensor<half> b = queue.DeQue<half>();
    if (broken) {
        queue.EnQue(b);  // caught
    }
    queue.FreeTensor(b);
}

CASE(free_of_another_queue, "queue-foreign")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> first, second;
    pipe.InitBuffer(first, 1, 64);
    pipe.InitBuffer(second, 1, 64);
    LocalTensor<half> a = first.AllocTensor<half>();
    if (broken) {
        second.FreeTensor(a);  // caught
    }
    first.FreeTensor(a);
}

CASE(free_while_queued, "queue-free")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    queue.EnQue(a);
    if (broken) {
        queue.FreeTensor(a);  // caught
    }
    LocalTensor<half> b = queue.DeQue<half>();
    queue.FreeTensor(b);
}

CASE(use_after_free, "use-after-free")
{
    TPipe pipe;
    TQue<TPosition::VECCALC, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    if (broken) {
        queue.FreeTensor(a);
    }
    Duplicate(a, half(1.0f), 16);  // caught
    queue.FreeTensor(a);
}

CASE(use_while_queued, "use-while-queued")
{
    TPipe pipe;
    TQue<TPosition::VECCALC, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    LocalTensor<half> a = queue.AllocTensor<half>();
    queue.EnQue(a);
    if (broken) {
        Duplicate(a, half(1.0f), 16);  // caught
    }
    LocalTensor<half> b = queue.DeQue<half>();
    Duplicate(b, half(1.0f), 16);
    queue.FreeTensor(b);
}

CASE(queue_without_buffers, "queue-not-initialised")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    if (!broken) {
        pipe.InitBuffer(queue, 1, 64);
    }
    LocalTensor<half> a = queue.AllocTensor<half>();  // caught
    queue.FreeTensor(a);
}

CASE(buffer_without_memory, "queue-not-initialised")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    if (!broken) {
        pipe.InitBuffer(buffer, 64);
    }
    Duplicate(buffer.Get<half>(), half(1.0f), 16);  // caught
}

CASE(init_buffer_twice, "init-twice")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 64);
    if (broken) {
        pipe.InitBuffer(buffer, 64);  // caught
    }
}

CASE(nine_buffers_in_one_position, "queue-buffers")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queues[5];
    for (int i = 0; i < (broken ? 5 : 4); ++i) {
        pipe.InitBuffer(queues[i], 2, 64);  // caught
    }
}

CASE(sixty_five_buffers, "buffer-count")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffers[65];
    for (int i = 0; i < (broken ? 65 : 64); ++i) {
        pipe.InitBuffer(buffers[i], 32);  // caught
    }
}

CASE(buffer_of_no_bytes, "buffer-size")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, broken ? 0 : 1);  // caught
}

CASE(ub_over_budget, "ub-budget")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> big, last;
    pipe.InitBuffer(big, 188128);
    pipe.InitBuffer(last, broken ? 33 : 32);  // caught
}

CASE(two_pipes, "tpipe-twice")
{
    TPipe pipe;
    if (broken) {
        TPipe another;  // caught
    }
}

CASE(empty_tensor, "tensor-empty")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 64);
    LocalTensor<half> a;
    if (!broken) {
        a = buffer.Get<half>();
    }
    Duplicate(a, half(1.0f), 16);  // caught
}

CASE(buffer_too_small, "ub-range")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 64);
    LocalTensor<half> a = buffer.Get<half>(broken ? 33 : 32);  // caught
    Duplicate(a, half(1.0f), 16);
}
