// The Matmul object, run at once and to the end inside the calling core.
#pragma once

#include "matmul_operand.h"

namespace AscendC {

template <typename AType, typename BType, typename CType, typename BiasType = CType>
class Matmul {
    using A = typename AType::T;
    using B = typename BType::T;
    using C = typename CType::T;
    using Bias = typename BiasType::T;
    static_assert(twin::placeExists<AType> && twin::placeExists<BType> && twin::placeExists<CType>,
                  "no such operand place on this chip: ND in global memory; on 310P also NZ there and in UB");
    static_assert(twin::inGm<BiasType> && BiasType::format == CubeFormat::ND, "a bias lies in global memory");
    static_assert(!twin::inGm<CType> || CType::format == CubeFormat::ND, "results in global memory are ND");
    static_assert(twin::matmulExists<A, B, C, Bias>, "the cube has no such combination of element types");
    using TensorA = twin::MatmulTensor<AType>;
    using TensorB = twin::MatmulTensor<BType>;

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

    void SetTensorA(const TensorA& tensor, bool isTransposeA = false, At at = At::here())
    {
        TWIN_COUNT("Matmul.SetTensorA");
        twin::MatmulState& s = state(at);
        requireTransposable(isTransposeA, AType::isTrans, "A", at);
        a_ = tensor;
        s.transposeA = isTransposeA;
        s.setA = true;
        s.iterating = false;
    }

    void SetTensorB(const TensorB& tensor, bool isTransposeB = false, At at = At::here())
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

    /// UB for layout changes on 310P.
    void SetLocalWorkspace(const LocalTensor<uint8_t>& tensor, At at = At::here())
    {
        TWIN_COUNT("Matmul.SetLocalWorkspace");
        twin::require(!twin::device().splitCores, at, "SetLocalWorkspace", "does not exist on this chip");
        state(at).localWorkspace = tensor.view();
    }

    /// The whole product into global memory. With sync = false the result, and the operands, are the Matmul's
    /// until the matching WaitIterateAll.
    template <bool sync = true>
    void IterateAll(const GlobalTensor<C>& gm, uint8_t enAtomic = 0, bool enSequentialWrite = false,
                    bool waitIterateAll = false, At at = At::here())
    {
        static_assert(twin::inGm<CType>, "IterateAll writes to global memory");
        TWIN_COUNT(sync ? "Matmul.IterateAll" : "Matmul.IterateAll<async>");
        twin::MatmulState& s = state(at);
        twin::require(sync || twin::device().splitCores, at, "IterateAll<false>", "this chip has no asynchronous form");
        if (enSequentialWrite) {
            twin::fail(at, "matmul-sequential", "IterateAll places blocks by their row stride; no sequential write");
        }
        if (sync == waitIterateAll) {
            twin::fail(at, "matmul-wait", sync ? "IterateAll<true> is not waited for"
                                               : "IterateAll<false> needs waitIterateAll = true and a WaitIterateAll");
        }
        twin::Instruction instruction("Matmul.IterateAll", twin::Pipe::CUBE, at);
        start(s, instruction);
        requireAtomic(enAtomic, at);
        while (!walk_->done()) {
            twin::writeBlock(instruction, gm, product_, s.singleN, advance(s, instruction), s.strideC(), enAtomic == 1);
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
        static_assert(sync && twin::inGm<CType>, "the twin models the synchronous GetTensorC to the result's place");
        TWIN_COUNT("Matmul.GetTensorC");
        twin::MatmulState& s = state(at);
        takeTile(enSequentialWrite, at);
        requireAtomic(enAtomic, at);
        twin::Instruction instruction("Matmul.GetTensorC", twin::Pipe::CUBE, at);
        twin::writeBlock(instruction, gm, product_, s.singleN, tile_, s.strideC(), enAtomic == 1);
        twin::postMessage();
        settle<true>(s, at);
    }

    /// The same block to UB, in the NZ layout (310P).
    template <bool sync = true>
    void GetTensorC(const LocalTensor<C>& local, uint8_t enAtomic = 0, bool enSequentialWrite = false,
                    At at = At::here())
    {
        static_assert(sync && twin::inUb<CType>, "the twin models the synchronous GetTensorC to the result's place");
        TWIN_COUNT("Matmul.GetTensorC");
        twin::MatmulState& s = state(at);
        takeTile(enSequentialWrite, at);
        if (enAtomic != 0) {
            twin::fail(at, "matmul-atomic", "no atomic results in UB");
        }
        twin::Instruction instruction("Matmul.GetTensorC", twin::Pipe::CUBE, at);
        twin::writeBlock(instruction, local, product_, s.singleN, tile_);
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
        state_->types.a = sizeof(A);
        state_->types.b = sizeof(B);
        state_->types.c = sizeof(C);
        state_->types.bias = sizeof(Bias);
        state_->types.transposableA = AType::isTrans;
        state_->types.transposableB = BType::isTrans;
        state_->types.ndA = AType::format == CubeFormat::ND;
        state_->types.ndB = BType::format == CubeFormat::ND;
        state_->types.gmC = twin::inGm<CType>;
        state_->tiling = *tiling;
        twin::checkTiling(*tiling, state_->types, at);
        const bool halfWithFloatBias = std::is_same_v<A, half> && std::is_same_v<Bias, float>;
        twin::require(twin::device().splitCores || halfWithFloatBias, at, "Matmul",
                      "this chip's cube takes half operands and a float bias");
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
        twin::checkStart(s, instruction);
        twin::useLocalWorkspace(s, instruction);
        s.ended = false;
        const int64_t m = s.singleM, n = s.singleN, k = s.singleK;
        product_.assign(static_cast<size_t>(m * n), 0.0f);
        if (s.biasSet) {
            const std::vector<float> bias = twin::gather<BiasType>(instruction, bias_, {0, 0, 1, n}, n, 1);
            for (int64_t row = 0; row < m; ++row) {
                std::copy(bias.begin(), bias.end(), product_.begin() + row * n);
            }
        }
        const std::vector<float> a = operandA(s, instruction);
        constexpr int64_t kColumns = 512;  // of B at a time, to keep its floats few
        for (int64_t column = 0; column < n; column += kColumns) {
            const int64_t width = std::min(kColumns, n - column);
            const std::vector<float> b = operandB(s, instruction, column, width);
            twin::multiply(product_.data() + column, n, a.data(), b.data(), m, width, k);
        }
        walk_ = std::make_unique<twin::TileWalk>(s.tiling, m, n, k);
    }

    std::vector<float> operandA(const twin::MatmulState& s, twin::Instruction& instruction) const
    {
        const int64_t m = s.singleM, k = s.singleK;
        if (s.transposeA) {
            return twin::transposed(
                twin::gather<AType>(instruction, a_, {0, 0, k, m}, s.strideA(), s.org.ka), k, m);
        }
        return twin::gather<AType>(instruction, a_, {0, 0, m, k}, s.strideA(), s.org.m);
    }

    /// `width` columns of B from `column` on, as [K, width].
    std::vector<float> operandB(const twin::MatmulState& s, twin::Instruction& instruction, int64_t column,
                                int64_t width) const
    {
        const int64_t k = s.singleK;
        if (s.transposeB) {
            return twin::transposed(
                twin::gather<BType>(instruction, b_, {column, 0, width, k}, s.strideB(), s.org.n), width, k);
        }
        return twin::gather<BType>(instruction, b_, {0, column, k, width}, s.strideB(), s.org.kb);
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

    void takeTile(bool enSequentialWrite, At at)
    {
        if (!haveTile_ || enSequentialWrite) {
            twin::fail(at, "matmul-sequential", haveTile_ ? "GetTensorC: sequential writes are not modelled"
                                                          : "GetTensorC without an Iterate before it");
        }
        haveTile_ = false;
    }

    static void requireAtomic(uint8_t enAtomic, At at)
    {
        if (enAtomic > 1) {
            twin::fail(at, "matmul-atomic", "enAtomic %d; 0 and 1 (add) are modelled", enAtomic);
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
    TensorA a_;
    TensorB b_;
    GlobalTensor<Bias> bias_;
    std::vector<float> product_;
    std::unique_ptr<twin::TileWalk> walk_;
    twin::Tile tile_{};
    bool haveTile_ = false;
};

}  // namespace AscendC

namespace twin {

#ifdef ASCENDC_CUBE_ONLY
constexpr bool kCubeOnly = true;
#else
constexpr bool kCubeOnly = false;
#endif

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
    if (kCubeOnly != (type == KernelType::AicOnly)) {
        fail(at, "kernel-type", "AIC_ONLY and a #define of ASCENDC_CUBE_ONLY before the include belong together");
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
