// DataCopy, DataCopyPad and what global memory allows.
#include "cases.h"

namespace {

const DataCopyPadExtParams<half> kNoPad;

}  // namespace

CASE(copy_not_32_bytes, "copy-length")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 256);
    DataCopy(buffer.Get<half>(), rig.x(), broken ? 100 : 96);  // caught
}

CASE(copy_to_odd_address, "ub-alignment")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 256);
    DataCopy(buffer.Get<half>()[broken ? 8 : 16], rig.x(), 16);  // caught
}

CASE(copy_4096_rows, "copy-params")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 4096 * 32);
    DataCopyPad(buffer.Get<half>(), rig.x(), DataCopyExtParams(broken ? 4096 : 4095, 2, 0, 0, 0), kNoPad);  // caught
}

CASE(copy_stride_wraps, "copy-params")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 64);
    DataCopy(buffer.Get<half>(), rig.x(), DataCopyParams(2, 1, broken ? 65536 : 0, 0));  // caught
}

CASE(pad_beyond_32_bytes, "pad-size")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 256);
    const DataCopyPadExtParams<half> pad(true, 0, broken ? 17 : 16, half(0.0f));
    DataCopyPad(buffer.Get<half>(), rig.x(), DataCopyExtParams(1, 32, 0, 0, 0), pad);  // caught
}

CASE(pad_without_flag, "pad-size")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 256);
    const DataCopyPadExtParams<half> pad(!broken, 0, 6, half(0.0f));
    DataCopyPad(buffer.Get<half>(), rig.x(), DataCopyExtParams(1, 20, 0, 0, 0), pad);  // caught
}

CASE(rows_wider_than_tensor, "ub-range")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, broken ? 96 : 128);
    DataCopyPad(buffer.Get<half>(), rig.x(), DataCopyExtParams(2, 40, 0, 0, 0), kNoPad);  // caught
}

CASE(read_past_the_tensor, "gm-range")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 64);
    const DataCopyExtParams copy(1, broken ? 22 : 20, 0, 0, 0);
    DataCopyPad(buffer.Get<half>(), rig.x()[kElements - 10], copy, kNoPad);  // caught
}

CASE(read_past_the_given_size, "gm-range")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 64);
    GlobalTensor<half> x;
    x.SetGlobalBuffer((__gm__ half*)rig.halves, broken ? 31 : 32);
    DataCopy(buffer.Get<half>(), x, 32);  // caught
}

CASE(write_to_an_input, "gm-write-input")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> t = filled(pipe, buffer, 16, half(1.0f));
    DataCopy(broken ? rig.x() : rig.y(), t, 16);  // caught
}

CASE(raw_workspace_pointer, "gm-reserved")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> t = filled(pipe, buffer, 16, half(1.0f));
    const GlobalTensor<half> ring = broken ? Rig::global<half>(rig.workspace) : rig.ring<half>();
    DataCopy(ring, t, 16);  // caught
}

CASE(user_workspace_of_user_workspace, "workspace-address")
{
    GM_ADDR user = GetUserWorkspace(rig.workspace);
    if (broken) {
        user = GetUserWorkspace(user);  // caught
    }
    (void)user;
}

CASE(tensor_without_buffer, "gm-null")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 64);
    GlobalTensor<half> x;
    if (!broken) {
        x = rig.x();
    }
    DataCopy(buffer.Get<half>(), x, 16);  // caught
}

CASE(odd_byte_address, "gm-alignment")
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 64);
    DataCopy(buffer.Get<half>(), Rig::global<half>(rig.halves + (broken ? 1 : 2)), 16);  // caught
}

CASE(scalar_read_of_an_output, "gm-scalar-read")
{
    const GlobalTensor<half> from = broken ? rig.y() : rig.x();
    (void)from.GetValue(0);  // caught
}

CASE(padding_was_not_given, "uninitialised-read")
{
    TPipe pipe;
    TQue<TPosition::VECIN, 1> queue;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(queue, 1, 64);
    pipe.InitBuffer(buffer, 64);
    LocalTensor<half> x = queue.AllocTensor<half>();
    const DataCopyPadExtParams<half> pad(!broken, 0, broken ? 0 : 12, half(0.0f));
    DataCopyPad(x, rig.x(), DataCopyExtParams(1, 40, 0, 0, 0), pad);
    queue.EnQue(x);
    LocalTensor<half> loaded = queue.DeQue<half>();
    Adds(buffer.Get<half>(), loaded, half(1.0f), 32);  // caught
    queue.FreeTensor(loaded);
}

CASE(fresh_tensor, "uninitialised-read")
{
    TPipe pipe;
    TQue<TPosition::VECCALC, 1> queue;
    pipe.InitBuffer(queue, 1, 64);
    for (int round = 0; round < 2; ++round) {
        LocalTensor<half> t = queue.AllocTensor<half>();
        if (!broken || round == 0) {
            Duplicate(t, half(1.0f), 32);
        }
        PipeBarrier<PIPE_V>();
        Adds(t, t, half(1.0f), 32);  // caught
        PipeBarrier<PIPE_V>();
        queue.FreeTensor(t);
    }
}

CASE(output_read_before_written, "uninitialised-read")
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> t = filled(pipe, buffer, 16, half(1.0f));
    if (!broken) {
        DataCopy(rig.y(), t, 16);
    }
    order<HardEvent::MTE3_MTE2>();
    DataCopy(t, rig.y(), 16);  // caught
}

CASE_ON(two_cores_write_one_byte, "cross-core-write", Vector, 2)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> t = filled(pipe, buffer, 16, half(1.0f));
    DataCopyPad(rig.y()[GetBlockIdx() * (broken ? 9 : 10)], t, DataCopyExtParams(1, 20, 0, 0, 0));  // caught
}

CASE_ON(write_over_what_another_core_read, "cross-core-write", Vector, 2)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> t = filled(pipe, buffer, 16, half(1.0f));
    const GlobalTensor<half> own = rig.y()[GetBlockIdx() * 64];
    DataCopy(own, t, 16);
    DataCopy(own[16], t, 16);
    order<HardEvent::MTE3_MTE2>();
    DataCopy(t, own, 16);
    order<HardEvent::MTE2_MTE3>();
    if (broken && GetBlockIdx() == 1) {
        DataCopy(rig.y(), t, 16);  // caught
    }
}

CASE_ON(read_what_another_core_wrote, "cross-core-read", Vector, 2)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    LocalTensor<half> t = filled(pipe, buffer, 16, half(1.0f));
    DataCopy(rig.y()[GetBlockIdx() * 64], t, 16);
    order<HardEvent::MTE3_MTE2>();
    DataCopy(t, rig.y()[broken ? 0 : GetBlockIdx() * 64], 16);  // caught
}

CASE_ON(pad_copy_on_310p, "not-on-device", Shared, 1)
{
    TPipe pipe;
    TBuf<TPosition::VECIN> buffer;
    pipe.InitBuffer(buffer, 64);
    if (broken) {
        DataCopyPad(buffer.Get<half>(), rig.x(), DataCopyExtParams(1, 20, 0, 0, 0), kNoPad);  // caught
    } else {
        DataCopy(buffer.Get<half>(), rig.x(), 16);
    }
}

CASE_ON(rounding_cast_on_310p, "not-on-device", Shared, 1)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> from, to;
    LocalTensor<float> f = filled(pipe, from, 16, 1.0f);
    pipe.InitBuffer(to, 64);
    Cast(to.Get<half>(), f, broken ? RoundMode::CAST_RINT : RoundMode::CAST_NONE, 16);  // caught
}

CASE_ON(bfloat16_on_310p, "not-on-device", Shared, 1)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> from, to;
    LocalTensor<float> f = filled(pipe, from, 16, 1.0f);
    pipe.InitBuffer(to, 64);
    if (broken) {
        Cast(to.Get<bfloat16_t>(), f, RoundMode::CAST_RINT, 16);  // caught
    }
}
