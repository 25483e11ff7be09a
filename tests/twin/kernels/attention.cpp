// A tiny flash attention, fp16 in and out: two Matmul objects, a ring slot a vector core, online softmax.
#include "kernel_operator.h"
#include "lib/matmul_intf.h"

using namespace AscendC;

struct AttentionTiling {
    int32_t heads;
    int32_t queries;
    int32_t keys;
    int32_t dim;
    int32_t stride;   // elements between rows of q, k, v and out: heads * dim
    int32_t m;        // query rows of a tile, a multiple of 8
    int32_t n;        // key columns of a tile, a multiple of 128
    int32_t causal;
    float scale;
    TCubeTiling scores;
    TCubeTiling values;
};

template <typename T, bool Transposable = false>
using Gm = MatmulType<TPosition::GM, CubeFormat::ND, T, Transposable>;

class AttentionKernel {
public:
    Matmul<Gm<half>, Gm<half, true>, Gm<float>> scoresMm;
    Matmul<Gm<half>, Gm<half>, Gm<float>> valuesMm;

    __aicore__ inline void Init(GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR out, GM_ADDR workspace,
                                const AttentionTiling& tiling, TPipe* pipe)
    {
        t_ = tiling;
        pitch_ = (tiling.dim + 15) / 16 * 16;
        pipe_ = pipe;
        q_.SetGlobalBuffer((__gm__ half*)q);
        k_.SetGlobalBuffer((__gm__ half*)k);
        v_.SetGlobalBuffer((__gm__ half*)v);
        out_.SetGlobalBuffer((__gm__ half*)out);
        const uint64_t scoreBytes = tiling.m * tiling.n * sizeof(float);
        const uint64_t probBytes = tiling.m * tiling.n * sizeof(half);
        const uint64_t slot = (scoreBytes + probBytes + tiling.m * tiling.dim * sizeof(float) + 511) / 512 * 512;
        GM_ADDR base = workspace + GetBlockIdx() * slot;
        scores_.SetGlobalBuffer((__gm__ float*)base, tiling.m * tiling.n);
        probs_.SetGlobalBuffer((__gm__ half*)(base + scoreBytes), tiling.m * tiling.n);
        partial_.SetGlobalBuffer((__gm__ float*)(base + scoreBytes + probBytes), tiling.m * tiling.dim);
        const int32_t widest = tiling.n > pitch_ ? tiling.n : pitch_;
        pipe->InitBuffer(in_, 1, tiling.m * widest * sizeof(float));
        pipe->InitBuffer(half_, 1, tiling.m * widest * sizeof(half));
        pipe->InitBuffer(sumO_, tiling.m * pitch_ * sizeof(float));
        pipe->InitBuffer(columns_, 4 * tiling.m * 32);
        pipe->InitBuffer(fold_, tiling.m * 64 * sizeof(float));
        pipe->InitBuffer(row_, tiling.m * sizeof(float));
        pipe->InitBuffer(relative_, tiling.m * tiling.n * sizeof(half));
        pipe->InitBuffer(bits_, tiling.m * tiling.n / 8);
        scoresMm.SetOrgShape(tiling.queries, tiling.keys, tiling.stride, tiling.stride, tiling.n);
        valuesMm.SetOrgShape(tiling.m, tiling.stride, tiling.n, tiling.n, tiling.dim);
        BuildRelative();
    }

    __aicore__ inline void Process()
    {
        const int32_t tiles = (t_.queries + t_.m - 1) / t_.m;
        const int32_t cores = GetBlockNum() * GetTaskRation();
        for (int32_t task = GetBlockIdx(); task < tiles * t_.heads; task += cores) {
            head_ = task / tiles;
            first_ = task % tiles * t_.m;
            rows_ = t_.queries - first_ < t_.m ? t_.queries - first_ : t_.m;
            Task();
        }
        scoresMm.End();
        valuesMm.End();
    }

private:
    __aicore__ inline LocalTensor<float> Column(int32_t index) { return columns_.Get<float>()[index * t_.m * 8]; }

    __aicore__ inline void BuildRelative()
    {
        LocalTensor<half> relative = relative_.Get<half>();
        for (int32_t c = 0; c < t_.n; ++c) {
            relative.SetValue(c, static_cast<half>(c));
        }
        const TEventID written = pipe_->FetchEventID(HardEvent::S_V);
        SetFlag<HardEvent::S_V>(written);
        WaitFlag<HardEvent::S_V>(written);
        for (int32_t r = 1; r < t_.m; ++r) {
            Adds(relative[r * t_.n], relative, static_cast<half>(-r), t_.n);
        }
        PipeBarrier<PIPE_V>();
    }

    __aicore__ inline void Task()
    {
        Duplicate(sumO_.Get<float>(), 0.0f, t_.m * pitch_);
        Duplicate(Column(0), -3.0e38f, t_.m * 8);
        Duplicate(Column(1), 0.0f, t_.m * 8);
        PipeBarrier<PIPE_V>();
        const int32_t last = t_.causal != 0 && first_ + rows_ < t_.keys ? first_ + rows_ : t_.keys;
        for (int32_t col = 0; col < last; col += t_.n) {
            cols_ = t_.keys - col < t_.n ? t_.keys - col : t_.n;
            Scores(col);
            LocalTensor<float> s = in_.DeQue<float>();
            Softmax(s, col);
            in_.FreeTensor(s);
            StoreProbs();
            Values(col);
        }
        Store();
    }

    __aicore__ inline uint64_t At(int32_t row) const { return static_cast<uint64_t>(row) * t_.stride + head_ * t_.dim; }

    __aicore__ inline void Scores(int32_t col)
    {
        scoresMm.SetSingleShape(rows_, cols_, t_.dim);
        scoresMm.SetTensorA(q_[At(first_)]);
        scoresMm.SetTensorB(k_[At(col)], true);
        scoresMm.IterateAll(scores_);
        LocalTensor<float> s = in_.AllocTensor<float>();
        const uint32_t bytes = cols_ * sizeof(float);
        DataCopyPad(s, scores_,
                    DataCopyExtParams(rows_, bytes, (t_.n - cols_) * sizeof(float), t_.n / 8 - (bytes + 31) / 32, 0),
                    DataCopyPadExtParams<float>());
        in_.EnQue(s);
    }

    /// Columns from `used` on, in all rows, become `value`.
    __aicore__ inline void Pad(const LocalTensor<float>& s, float value)
    {
        for (int32_t c = cols_ / 64 * 64; c < t_.n; c += 64) {
            const int32_t used = cols_ > c ? cols_ - c : 0;
            uint64_t mask[2] = {~0ULL << used, 0};
            Duplicate(s[c], value, mask, rows_, 1, t_.n / 8);
        }
        PipeBarrier<PIPE_V>();
    }

    template <typename Op>
    __aicore__ inline void EachRow(const LocalTensor<float>& x, const LocalTensor<float>& column, int32_t width, Op op)
    {
        const int32_t pitch = width / 8;
        for (int32_t c = 0; c < width; c += 64) {
            const uint64_t mask = width - c < 64 ? width - c : 64;
            op(x[c], column, mask, BinaryRepeatParams(1, 1, 0, pitch, pitch, 1));
        }
        PipeBarrier<PIPE_V>();
    }

    template <typename Fold, typename Reduce>
    __aicore__ inline void RowReduce(const LocalTensor<float>& column, const LocalTensor<float>& x, Fold fold,
                                     Reduce reduce)
    {
        LocalTensor<float> t = fold_.Get<float>(), row = row_.Get<float>();
        fold(t, x, x[64], BinaryRepeatParams(1, 1, 1, 8, t_.n / 8, t_.n / 8));
        Duplicate(row, 0.0f, t_.m);
        PipeBarrier<PIPE_V>();
        for (int32_t c = 128; c < t_.n; c += 64) {
            fold(t, t, x[c], BinaryRepeatParams(1, 1, 1, 8, 8, t_.n / 8));
            PipeBarrier<PIPE_V>();
        }
        reduce(row, t);
        PipeBarrier<PIPE_V>();
        Brcb(column, row, t_.m / 8, BrcbRepeatParams(1, 8));
        PipeBarrier<PIPE_V>();
    }

    __aicore__ inline void Softmax(const LocalTensor<float>& s, int32_t col)
    {
        const int32_t rows = rows_;
        Pad(s, 0.0f);
        Muls(s, s, t_.scale, rows * t_.n);
        PipeBarrier<PIPE_V>();
        if (t_.causal != 0 && col + cols_ > first_) {
            const int32_t limit = first_ - col < -2000 ? -2000 : first_ - col;
            CompareScalar(bits_.Get<uint8_t>(), relative_.Get<half>(), static_cast<half>(limit), CMPMODE::LE,
                          rows * t_.n);
            PipeBarrier<PIPE_V>();
            Select(s, bits_.Get<uint8_t>(), s, -1.0e30f, SELMODE::VSEL_TENSOR_SCALAR_MODE, rows * t_.n);
            PipeBarrier<PIPE_V>();
        }
        Pad(s, -3.0e38f);
        LocalTensor<float> top = Column(0), sum = Column(1), factor = Column(2), fresh = Column(3);
        RowReduce(
            fresh, s, [rows](auto d, auto a, auto b, const BinaryRepeatParams& p) { Max(d, a, b, 64, rows, p); },
            [rows](auto d, auto t) { WholeReduceMax(d, t, 64, rows, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE); });
        Max(fresh, fresh, top, rows * 8);
        PipeBarrier<PIPE_V>();
        Sub(factor, top, fresh, rows * 8);
        PipeBarrier<PIPE_V>();
        Exp(factor, factor, rows * 8);
        Adds(top, fresh, 0.0f, rows * 8);
        EachRow(s, fresh, t_.n, [rows](auto v, auto c, uint64_t mask, const BinaryRepeatParams& p) {
            Sub(v, v, c, mask, rows, p);
        });
        Exp(s, s, rows * t_.n);
        PipeBarrier<PIPE_V>();
        RowReduce(
            fresh, s, [rows](auto d, auto a, auto b, const BinaryRepeatParams& p) { Add(d, a, b, 64, rows, p); },
            [rows](auto d, auto t) { WholeReduceSum(d, t, 64, rows, 1, 1, 8); });
        Mul(sum, sum, factor, rows * 8);
        PipeBarrier<PIPE_V>();
        Add(sum, sum, fresh, rows * 8);
        LocalTensor<half> p = half_.AllocTensor<half>();
        Cast(p, s, RoundMode::CAST_RINT, rows * t_.n);
        PipeBarrier<PIPE_V>();
        half_.EnQue(p);
    }

    __aicore__ inline void StoreProbs()
    {
        LocalTensor<half> p = half_.DeQue<half>();
        const uint32_t bytes = cols_ * sizeof(half);
        DataCopyPad(probs_, p,
                    DataCopyExtParams(rows_, bytes, t_.n / 16 - (bytes + 31) / 32, (t_.n - cols_) * sizeof(half), 0));
        half_.FreeTensor(p);
        const TEventID stored = pipe_->FetchEventID(HardEvent::MTE3_MTE2);
        SetFlag<HardEvent::MTE3_MTE2>(stored);
        WaitFlag<HardEvent::MTE3_MTE2>(stored);
    }

    __aicore__ inline void Values(int32_t col)
    {
        const int32_t rows = rows_;
        valuesMm.SetSingleShape(rows_, t_.dim, cols_);
        valuesMm.SetTensorA(probs_);
        valuesMm.SetTensorB(v_[At(col)]);
        valuesMm.IterateAll(partial_);
        LocalTensor<float> o = in_.AllocTensor<float>();
        const int32_t pad = pitch_ - t_.dim;
        DataCopyPad(o, partial_, DataCopyExtParams(rows_, t_.dim * sizeof(float), 0, 0, 0),
                    DataCopyPadExtParams<float>(pad > 0, 0, pad, 0.0f));
        in_.EnQue(o);
        LocalTensor<float> part = in_.DeQue<float>();
        LocalTensor<float> total = sumO_.Get<float>();
        EachRow(total, Column(2), pitch_, [rows](auto v, auto c, uint64_t mask, const BinaryRepeatParams& p) {
            Mul(v, v, c, mask, rows, p);
        });
        Add(total, total, part, rows * pitch_);
        PipeBarrier<PIPE_V>();
        in_.FreeTensor(part);
    }

    __aicore__ inline void Store()
    {
        const int32_t rows = rows_;
        LocalTensor<float> total = sumO_.Get<float>();
        EachRow(total, Column(1), pitch_, [rows](auto v, auto c, uint64_t mask, const BinaryRepeatParams& p) {
            Div(v, v, c, mask, rows, p);
        });
        LocalTensor<half> result = half_.AllocTensor<half>();
        Cast(result, total, RoundMode::CAST_RINT, rows * pitch_);
        PipeBarrier<PIPE_V>();
        half_.EnQue(result);
        LocalTensor<half> o = half_.DeQue<half>();
        const uint32_t bytes = t_.dim * sizeof(half);
        DataCopyPad(out_[At(first_)], o,
                    DataCopyExtParams(rows_, bytes, pitch_ / 16 - (bytes + 31) / 32,
                                      (t_.stride - t_.dim) * sizeof(half), 0));
        half_.FreeTensor(o);
    }

    AttentionTiling t_{};
    TPipe* pipe_ = nullptr;
    int32_t pitch_ = 0;
    int32_t head_ = 0;
    int32_t first_ = 0;
    int32_t rows_ = 0;
    int32_t cols_ = 0;
    GlobalTensor<half> q_, k_, v_, out_, probs_;
    GlobalTensor<float> scores_, partial_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> half_;
    TBuf<TPosition::VECCALC> sumO_, columns_, fold_, row_, relative_, bits_;
};

extern "C" __global__ __aicore__ void attention(GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR out, GM_ADDR workspace,
                                                GM_ADDR tiling)
{
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
    GET_TILING_DATA_WITH_STRUCT(AttentionTiling, data, tiling);
    TPipe pipe;
    AttentionKernel kernel;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), kernel.scoresMm, &data.scores, kernel.valuesMm, &data.values);
    kernel.Init(q, k, v, out, GetUserWorkspace(workspace), data, &pipe);
    kernel.Process();
}
