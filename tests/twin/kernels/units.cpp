// One vector instruction at a time, on a whole tensor in UB: y = op(x, z).
#include "kernel_operator.h"

using namespace AscendC;

enum Unit : int32_t {
    kAdd, kSub, kMul, kDiv, kMax, kMin, kAddRelu, kMulAddDst, kFusedMulAdd,
    kExp, kLn, kAbs, kSqrt, kRelu, kRsqrt, kReciprocal,
    kAdds, kMuls, kMaxs, kMins, kLeakyRelu, kAxpy, kErf, kTanh, kSigmoid, kSin, kCos,
    kSelect, kBlockReduceSum, kBlockReduceMax, kPairReduceSum, kReduceSum, kReduceMax, kReduceMin, kBrcb,
    kBitMask, kStridedBlocks,
};

struct UnitTiling {
    int32_t unit;
    int32_t count;  // a multiple of 128
    float scalar;
};

template <typename T>
class UnitKernel {
public:
    __aicore__ inline void Run(GM_ADDR x, GM_ADDR z, GM_ADDR y, const UnitTiling& tiling)
    {
        n_ = tiling.count;
        s_ = static_cast<T>(tiling.scalar);
        TPipe pipe;
        TBuf<TPosition::VECCALC> buffers[4];
        for (auto& buffer : buffers) {
            pipe.InitBuffer(buffer, n_ * sizeof(float));
        }
        TBuf<TPosition::VECCALC> scratch;
        pipe.InitBuffer(scratch, 1024);
        LocalTensor<T> a = buffers[0].Get<T>(), b = buffers[1].Get<T>(), d = buffers[2].Get<T>();
        Duplicate(d, static_cast<T>(1.0f), n_);
        PipeBarrier<PIPE_ALL>();
        DataCopy(a, Global(x), n_);
        DataCopy(b, Global(z), n_);
        PipeBarrier<PIPE_ALL>();
        One(tiling.unit, d, a, b, buffers[3].Get<uint8_t>(), scratch.Get<uint8_t>());
        PipeBarrier<PIPE_ALL>();
        DataCopy(Global(y), d, n_);
        PipeBarrier<PIPE_ALL>();
    }

private:
    static GlobalTensor<T> Global(GM_ADDR address)
    {
        GlobalTensor<T> tensor;
        tensor.SetGlobalBuffer((__gm__ T*)address);
        return tensor;
    }

    __aicore__ inline void One(int32_t unit, LocalTensor<T> d, LocalTensor<T> a, LocalTensor<T> b,
                               LocalTensor<uint8_t> bits, LocalTensor<uint8_t> scratch)
    {
        constexpr int32_t lanes = 256 / sizeof(T);
        const int32_t repeats = n_ / lanes;
        const LocalTensor<T> work = bits.template ReinterpretCast<T>();
        uint64_t odd[2] = {0xAAAAAAAAAAAAAAAAull, sizeof(T) == 2 ? 0xAAAAAAAAAAAAAAAAull : 0};
        switch (unit) {
            case kAdd: Add(d, a, b, n_); break;
            case kSub: Sub(d, a, b, lanes, repeats, BinaryRepeatParams()); break;
            case kMul: Mul(d, a, b, n_); break;
            case kDiv: Div(d, a, b, n_); break;
            case kMax: Max(d, a, b, n_); break;
            case kMin: Min(d, a, b, n_); break;
            case kAddRelu: AddRelu(d, a, b, n_); break;
            case kMulAddDst: MulAddDst(d, a, b, n_); break;
            case kFusedMulAdd: FusedMulAdd(d, a, b, n_); break;
            case kExp: Exp(d, a, n_); break;
            case kLn: Ln(d, a, n_); break;
            case kAbs: Abs(d, a, n_); break;
            case kSqrt: Sqrt(d, a, n_); break;
            case kRelu: Relu(d, a, lanes, repeats, UnaryRepeatParams()); break;
            case kRsqrt: Rsqrt(d, a, n_); break;
            case kReciprocal: Reciprocal(d, a, n_); break;
            case kAdds: Adds(d, a, s_, n_); break;
            case kMuls: Muls(d, a, s_, n_); break;
            case kMaxs: Maxs(d, a, s_, n_); break;
            case kMins: Mins(d, a, s_, n_); break;
            case kLeakyRelu: LeakyRelu(d, a, s_, n_); break;
            case kAxpy: Axpy(d, a, s_, n_); break;
            case kErf: Erf(d, a, scratch, n_); break;
            case kTanh: Tanh(d, a, scratch, n_); break;
            case kSin: Sin(d, a, scratch, n_); break;
            case kCos: Cos(d, a, scratch, n_); break;
            case kSigmoid: Sigmoid(d, a, scratch, n_); break;
            case kSelect:
                Compare(bits, a, b, CMPMODE::GT, n_);
                PipeBarrier<PIPE_V>();
                Select(d, bits, a, b, SELMODE::VSEL_TENSOR_TENSOR_MODE, n_);
                break;
            case kBlockReduceSum: BlockReduceSum(d, a, repeats, lanes, 1, 1, 8); break;
            case kBlockReduceMax: BlockReduceMax(d, a, repeats, lanes, 1, 1, 8); break;
            case kPairReduceSum: PairReduceSum(d, a, repeats, lanes, 1, 1, 8); break;
            case kReduceSum: ReduceSum(d, a, work, n_); break;
            case kReduceMax: ReduceMax(d, a, work, n_); break;
            case kReduceMin: ReduceMin(d, a, work, n_); break;
            case kBrcb: Brcb(d, a, n_ * sizeof(T) / 256, BrcbRepeatParams(1, 8)); break;
            case kBitMask: Add(d, a, b, odd, repeats, BinaryRepeatParams()); break;
            case kStridedBlocks: Add(d, a, b, lanes, 1, BinaryRepeatParams(2, 1, 0, 8, 8, 8)); break;
        }
    }

    int32_t n_ = 0;
    T s_{};
};

extern "C" __global__ __aicore__ void units(GM_ADDR x, GM_ADDR z, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GET_TILING_DATA_WITH_STRUCT(UnitTiling, data, tiling);
    if (TILING_KEY_IS(1)) {
        UnitKernel<half>().Run(x, z, y, data);
    } else {
        UnitKernel<float>().Run(x, z, y, data);
    }
}

/// y = x in another type, by every rounding mode.
struct CastTiling {
    int32_t mode;
    int32_t count;
};

template <typename D, typename S>
__aicore__ inline void CastAll(GM_ADDR x, GM_ADDR y, const CastTiling& tiling)
{
    TPipe pipe;
    TBuf<TPosition::VECCALC> from, to;
    pipe.InitBuffer(from, tiling.count * sizeof(S));
    pipe.InitBuffer(to, tiling.count * sizeof(D));
    GlobalTensor<S> in;
    GlobalTensor<D> out;
    in.SetGlobalBuffer((__gm__ S*)x);
    out.SetGlobalBuffer((__gm__ D*)y);
    DataCopy(from.Get<S>(), in, tiling.count);
    PipeBarrier<PIPE_ALL>();
    Cast(to.Get<D>(), from.Get<S>(), static_cast<RoundMode>(tiling.mode), tiling.count);
    PipeBarrier<PIPE_ALL>();
    DataCopy(out, to.Get<D>(), tiling.count);
}

extern "C" __global__ __aicore__ void casts(GM_ADDR x, GM_ADDR y, GM_ADDR, GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GET_TILING_DATA_WITH_STRUCT(CastTiling, data, tiling);
    if (TILING_KEY_IS(0)) {
        CastAll<half, float>(x, y, data);
    } else if (TILING_KEY_IS(1)) {
        CastAll<bfloat16_t, float>(x, y, data);
    } else if (TILING_KEY_IS(2)) {
        CastAll<int32_t, float>(x, y, data);
    } else if (TILING_KEY_IS(3)) {
        CastAll<float, half>(x, y, data);
    } else if (TILING_KEY_IS(4)) {
        CastAll<half, uint8_t>(x, y, data);
    } else if (TILING_KEY_IS(5)) {
        CastAll<uint8_t, half>(x, y, data);
    } else if (TILING_KEY_IS(6)) {
        CastAll<float, bfloat16_t>(x, y, data);
    }
}
