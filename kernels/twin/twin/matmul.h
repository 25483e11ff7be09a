// The Matmul object with operands in global memory, run at once and to the end inside the calling core.
#pragma once

#include "matmul_rules.h"
#include "vector.h"

namespace AscendC {

enum class CubeFormat : uint8_t { ND, NZ };

template <TPosition Position, CubeFormat Format, typename Element, bool Transposable = false>
struct MatmulType {
    static constexpr TPosition pos = Position;
    static constexpr CubeFormat format = Format;
    static constexpr bool isTrans = Transposable;
    using T = Element;
};

}  // namespace AscendC

namespace twin {

using AscendC::GlobalTensor;

/// Rows of a matrix in global memory as dense floats; every row is checked and recorded.
template <typename T>
std::vector<float> gather(Instruction& instruction, const GlobalTensor<T>& tensor, int64_t rows, int64_t columns,
                          int64_t stride)
{
    std::vector<float> values(static_cast<size_t>(rows * columns));
    const uint64_t bytes = static_cast<uint64_t>(columns) * sizeof(T);
    for (int64_t row = 0; row < rows; ++row) {
        uint64_t offset = 0;
        GlobalMemory& memory = tensor.locate(static_cast<uint64_t>(row * stride) * sizeof(T), bytes, instruction, offset);
        instruction.checkGmRead(memory, offset, bytes);
        instruction.noteGmRead(memory, offset, bytes);
        const T* from = reinterpret_cast<const T*>(memory.data + offset);
        std::copy(from, from + columns, values.begin() + row * columns);
    }
    return values;
}

inline std::vector<float> transposed(const std::vector<float>& from, int64_t rows, int64_t columns)
{
    std::vector<float> to(from.size());
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
            to[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * columns + c)];
        }
    }
    return to;
}

template <typename T>
void charge(const GlobalTensor<T>& tensor, const Instruction& instruction, uint64_t elements)
{
    uint64_t offset = 0;
    tensor.locate(0, sizeof(T), instruction, offset).traffic.readByCube += elements * sizeof(T);
}

/// The element-type combinations of half, bfloat16 and float.
template <typename A, typename B, typename C, typename Bias>
constexpr bool matmulExists =
    std::is_same_v<A, B> &&
    ((std::is_same_v<A, half> && (std::is_same_v<C, half> || std::is_same_v<C, float>) &&
      (std::is_same_v<Bias, half> || std::is_same_v<Bias, float>)) ||
     (std::is_same_v<A, bfloat16_t> && (std::is_same_v<C, bfloat16_t> || std::is_same_v<C, float>) &&
      std::is_same_v<Bias, float>) ||
     (std::is_same_v<A, float> && std::is_same_v<C, float> && std::is_same_v<Bias, float>));

}  // namespace twin

namespace AscendC {

template <typename AType, typename BType, typename CType, typename BiasType = CType>
class Matmul {
    using A = typename AType::T;
    using B = typename BType::T;
    using C = typename CType::T;
    using Bias = typename BiasType::T;
    static_assert(AType::pos == TPosition::GM && BType::pos == TPosition::GM && CType::pos == TPosition::GM,
                  "the twin models Matmul operands in global memory");
    static_assert(AType::format == CubeFormat::ND && BType::format == CubeFormat::ND && CType::format == CubeFormat::ND,
                  "the twin models ND operands");
    static_assert(twin::matmulExists<A, B, C, Bias>, "the cube has no such combination of element types");

public:
    void SetOrgShape(int m, int n, int k, At at = At::here()) { setOrgShape({m, n, k, k, n}, at); }
    void SetOrgShape(int m, int n, int ka, int kb, At at = At::here()) { setOrgShape({m, n, ka, kb, 0}, at); }
    void SetOrgShape(int m, int n, int ka, int kb, int kc, At at = At::here())
    {
        if (kc <= 0) {
            twin::fail(at, "matmul-org-shape", "SetOrgShape: Kc is %d", kc);
        }
        setOrgShape({m, n, ka, kb, kc}, at);
    }

    void SetSingleShape(int m, int n, int k, At at = At::here())
    {
        TWIN_COUNT("Matmul.SetSingleShape");
        twin::MatmulState& s = state(at);
        s.singleM = m;
        s.singleN = n;
        s.singleK = k;
    }

    /// -1 leaves a size as it is.
    void SetTail(int m = -1, int n = -1, int k = -1, At at = At::here())
    {
        TWIN_COUNT("Matmul.SetTail");
        twin::MatmulState& s = state(at);
        s.singleM = m == -1 ? s.singleM : m;
        s.singleN = n == -1 ? s.singleN : n;
        s.singleK = k == -1 ? s.singleK : k;
    }

    void SetTensorA(const GlobalTensor<A>& tensor, bool isTransposeA = false, At at = At::here())
    {
        TWIN_COUNT("Matmul.SetTensorA");
        twin::MatmulState& s = state(at);
        requireTransposable(isTransposeA, AType::isTrans, "A", at);
        a_ = tensor;
        s.transposeA = isTransposeA;
        s.setA = true;
        s.iterating = false;
    }

    void SetTensorB(const GlobalTensor<B>& tensor, bool isTransposeB = false, At at = At::here())
    {
        TWIN_COUNT("Matmul.SetTensorB");
        twin::MatmulState& s = state(at);
        requireTransposable(isTransposeB, BType::isTrans, "B", at);
        b_ = tensor;
        s.transposeB = isTransposeB;
        s.setB = true;
        s.iterating = false;
    }

    void SetBias(const GlobalTensor<Bias>& tensor, At at = At::here())
    {
        TWIN_COUNT("Matmul.SetBias");
        twin::MatmulState& s = state(at);
        bias_ = tensor;
        s.biasSet = true;
        s.biasDecided = true;
    }

    void ClearBias(At at = At::here())
    {
        TWIN_COUNT("Matmul.ClearBias");
        state(at).biasSet = false;
        state(at).biasDecided = true;
    }

    /// The whole product into global memory. With sync = false the result, and the operands, are the Matmul's
    /// until the matching WaitIterateAll.
    template <bool sync = true>
    void IterateAll(const GlobalTensor<C>& gm, uint8_t enAtomic = 0, bool enSequentialWrite = false,
                    bool waitIterateAll = false, At at = At::here())
    {
        TWIN_COUNT(sync ? "Matmul.IterateAll" : "Matmul.IterateAll<async>");
        twin::MatmulState& s = state(at);
        if (enSequentialWrite) {
            twin::fail(at, "matmul-sequential", "IterateAll places blocks by their row stride; no sequential write");
        }
        if (sync == waitIterateAll) {
            twin::fail(at, "matmul-wait", sync ? "IterateAll<true> is not waited for"
                                               : "IterateAll<false> needs waitIterateAll = true and a WaitIterateAll");
        }
        twin::Instruction instruction("Matmul.IterateAll", twin::Pipe::CUBE, at);
        start(s, instruction);
        while (!walk_->done()) {
            writeTile(s, instruction, gm, advance(s, instruction), enAtomic);
        }
        finish(s);
        twin::postMessage();
        settle<sync>(s, at);
    }

    /// Computes the next output block; false when there is none left.
    template <bool sync = true>
    bool Iterate(bool enPartialSum = false, At at = At::here())
    {
        static_assert(sync, "the twin models the synchronous Iterate");
        TWIN_COUNT("Matmul.Iterate");
        twin::MatmulState& s = state(at);
        if (enPartialSum) {
            twin::fail(at, "matmul-partial", "partial sums are not modelled");
        }
        if (s.iterating && walk_->done()) {
            finish(s);
            return false;
        }
        twin::Instruction instruction("Matmul.Iterate", twin::Pipe::CUBE, at);
        if (!s.iterating) {
            start(s, instruction);
            s.iterating = true;
        }
        tile_ = advance(s, instruction);
        haveTile_ = true;
        twin::postMessage();
        settle<true>(s, at);
        return true;
    }

    /// Writes the block that the last Iterate computed to its place in the result.
    template <bool sync = true>
    void GetTensorC(const GlobalTensor<C>& gm, uint8_t enAtomic = 0, bool enSequentialWrite = false, At at = At::here())
    {
        static_assert(sync, "the twin models the synchronous GetTensorC");
        TWIN_COUNT("Matmul.GetTensorC");
        twin::MatmulState& s = state(at);
        if (!haveTile_ || enSequentialWrite) {
            twin::fail(at, "matmul-sequential", haveTile_ ? "GetTensorC: sequential writes are not modelled"
                                                          : "GetTensorC without an Iterate before it");
        }
        twin::Instruction instruction("Matmul.GetTensorC", twin::Pipe::CUBE, at);
        writeTile(s, instruction, gm, tile_, enAtomic);
        haveTile_ = false;
        twin::postMessage();
        settle<true>(s, at);
    }

    void WaitIterateAll(At at = At::here())
    {
        TWIN_COUNT("Matmul.WaitIterateAll");
        twin::MatmulState& s = state(at);
        if (s.unwaited.empty()) {
            twin::fail(at, "matmul-wait", "WaitIterateAll without an IterateAll<false> to wait for");
        }
        twin::core(at).clocks.learn(twin::Pipe::S, s.unwaited.front());
        s.unwaited.erase(s.unwaited.begin());
    }

    void End(At at = At::here())
    {
        TWIN_COUNT("Matmul.End");
        state(at).ended = true;
        twin::postMessage();
    }

    /// Called by REGIST_MATMUL_OBJ.
    void twinRegister(const TCubeTiling* tiling, At at)
    {
        if (tiling == nullptr || state_) {
            twin::fail(at, "matmul-regist", tiling == nullptr ? "no tiling" : "the object is registered twice");
        }
        state_ = std::make_shared<twin::MatmulState>();
        state_->types = {sizeof(A), sizeof(B), sizeof(Bias), AType::isTrans, BType::isTrans};
        state_->tiling = *tiling;
        twin::checkTiling(*tiling, state_->types, at);
        twin::require(twin::device().bfloat16 || !std::is_same_v<A, bfloat16_t>, at, "Matmul", "no bfloat16");
        state_->org = {tiling->M, tiling->N, tiling->Ka, tiling->Kb, 0};
        state_->singleM = tiling->singleCoreM;
        state_->singleN = tiling->singleCoreN;
        state_->singleK = tiling->singleCoreK;
        state_->registered = at;
        twin::core(at).exitChecks.push_back([s = state_](At) {
            if (!s->unwaited.empty()) {
                twin::fail(s->registered, "matmul-wait", "%zu IterateAll<false> were never waited for",
                           s->unwaited.size());
            }
            if (!s->ended) {
                twin::fail(s->registered, "matmul-end", "End() was not called after the last product");
            }
        });
    }

private:
    twin::MatmulState& state(At at) const
    {
        twin::core(at);
        if (!state_) {
            twin::fail(at, "matmul-regist", "the Matmul object was not given to REGIST_MATMUL_OBJ");
        }
        return *state_;
    }

    void setOrgShape(const twin::OrgShape& org, At at)
    {
        TWIN_COUNT("Matmul.SetOrgShape");
        twin::checkOrgShape(org, state(at), at);
        state(at).org = org;
        twin::postMessage();
    }

    static void requireTransposable(bool asked, bool declared, const char* operand, At at)
    {
        if (asked && !declared) {
            twin::fail(at, "matmul-transpose", "%s is transposed, but its MatmulType does not say so", operand);
        }
    }

    /// Reads the operands and computes the whole product in float, bias first as the cube does.
    void start(twin::MatmulState& s, twin::Instruction& instruction)
    {
        twin::checkStart(s, instruction.at());
        s.ended = false;
        const int64_t m = s.singleM, n = s.singleN, k = s.singleK;
        std::vector<float> a = twin::gather(instruction, a_, s.transposeA ? k : m, s.transposeA ? m : k, s.strideA());
        std::vector<float> b = twin::gather(instruction, b_, s.transposeB ? n : k, s.transposeB ? k : n, s.strideB());
        a = s.transposeA ? twin::transposed(a, k, m) : a;
        b = s.transposeB ? twin::transposed(b, n, k) : b;
        product_.assign(static_cast<size_t>(m * n), 0.0f);
        if (s.biasSet) {
            const std::vector<float> bias = twin::gather(instruction, bias_, 1, n, n);
            for (int64_t row = 0; row < m; ++row) {
                std::copy(bias.begin(), bias.end(), product_.begin() + row * n);
            }
        }
        twin::multiply(product_.data(), a.data(), b.data(), m, n, k);
        walk_ = std::make_unique<twin::TileWalk>(s.tiling, m, n, k);
    }

    twin::Tile advance(const twin::MatmulState& s, const twin::Instruction& instruction)
    {
        const twin::Tile tile = walk_->next();
        twin::charge(a_, instruction, static_cast<uint64_t>(tile.loadedA));
        twin::charge(b_, instruction, static_cast<uint64_t>(tile.loadedB));
        if (s.biasSet) {
            twin::charge(bias_, instruction, static_cast<uint64_t>(tile.columns));
        }
        return tile;
    }

    void writeTile(const twin::MatmulState& s, twin::Instruction& instruction, const GlobalTensor<C>& gm,
                   const twin::Tile& tile, uint8_t enAtomic)
    {
        if (enAtomic > 1) {
            twin::fail(instruction.at(), "matmul-atomic", "enAtomic %d; 0 and 1 (add) are modelled", enAtomic);
        }
        const uint64_t bytes = static_cast<uint64_t>(tile.columns) * sizeof(C);
        for (int64_t row = tile.m; row < tile.m + tile.rows; ++row) {
            uint64_t offset = 0;
            twin::GlobalMemory& memory =
                gm.locate(static_cast<uint64_t>(row * s.strideC() + tile.n) * sizeof(C), bytes, instruction, offset);
            if (enAtomic == 1) {
                instruction.checkGmRead(memory, offset, bytes);
            }
            instruction.checkGmWrite(memory, offset, bytes);
            C* out = reinterpret_cast<C*>(memory.data + offset);
            for (int64_t column = 0; column < tile.columns; ++column) {
                const float value = product_[static_cast<size_t>(row * s.singleN + tile.n + column)];
                const float sum = enAtomic == 1 ? static_cast<float>(out[column]) + value : value;
                out[column] = round(sum, instruction);
            }
            instruction.noteGmWrite(memory, offset, bytes);
            memory.traffic.writtenByCube += bytes;
        }
    }

    static C round(float value, const twin::Instruction& instruction)
    {
        if constexpr (std::is_same_v<C, half>) {
            return twin::store<half>(value, std::isfinite(value), instruction);
        } else {
            return static_cast<C>(value);
        }
    }

    void finish(twin::MatmulState& s)
    {
        s.setA = false;
        s.setB = false;
        s.iterating = false;
        haveTile_ = false;
    }

    template <bool sync>
    void settle(twin::MatmulState& s, At at)
    {
        twin::Clocks& clocks = twin::core(at).clocks;
        const twin::Clock finished = clocks.completion(twin::Pipe::CUBE);
        if (sync) {
            clocks.learn(twin::Pipe::S, finished);
        } else {
            s.unwaited.push_back(finished);
        }
    }

    std::shared_ptr<twin::MatmulState> state_;
    GlobalTensor<A> a_;
    GlobalTensor<B> b_;
    GlobalTensor<Bias> bias_;
    std::vector<float> product_;
    std::unique_ptr<twin::TileWalk> walk_;
    twin::Tile tile_{};
    bool haveTile_ = false;
};

}  // namespace AscendC

namespace twin {

template <typename Object, typename... Rest>
void registerObjects(At at, Object& object, const TCubeTiling* tiling, Rest&&... rest)
{
    object.twinRegister(tiling, at);
    if constexpr (sizeof...(Rest) > 0) {
        registerObjects(at, rest...);
    }
}

template <typename... Pairs>
void registerMatmul(AscendC::TPipe* pipe, const void* workspace, At at, Pairs&&... pairs)
{
    TWIN_COUNT("REGIST_MATMUL_OBJ");
    static_assert(sizeof...(Pairs) % 2 == 0 && sizeof...(Pairs) / 2 <= kMaxMatmulObjects,
                  "REGIST_MATMUL_OBJ takes up to four objects, each followed by its tiling");
    const KernelType type = kernelType(at);
    if (type == KernelType::AivOnly) {
        fail(at, "kernel-type", "a Matmul needs cube cores; the kernel is AIV_ONLY");
    }
    if (pipe == nullptr || workspace != AscendC::GetSysWorkSpacePtr(at)) {
        fail(at, "matmul-regist", "REGIST_MATMUL_OBJ takes the TPipe and GetSysWorkSpacePtr()");
    }
    if (!core(at).buffers.empty()) {
        fail(at, "matmul-regist", "REGIST_MATMUL_OBJ must come before the first InitBuffer");
    }
    registerObjects(at, pairs...);
}

}  // namespace twin

#define REGIST_MATMUL_OBJ(pipe, workspace, ...) \
    ::twin::registerMatmul((pipe), (workspace), ::twin::At::here(), __VA_ARGS__)

namespace matmul {
using AscendC::Matmul;
using AscendC::MatmulType;
}  // namespace matmul
using AscendC::CubeFormat;
