// What a TCubeTiling and the calls of a Matmul object must satisfy.
#pragma once

#include "matmul_tiles.h"
#include "system.h"

namespace twin {

constexpr int kMaxMatmulObjects = 4;
constexpr int64_t kMaxRowStride = 65535;
constexpr int kBiasTableColumns = 256;
constexpr uint64_t kMessageBytes = 128;

/// The compile-time choices of one Matmul object; element types as their bytes.
struct MatmulTypes {
    int a;
    int b;
    int c;
    int bias;
    bool transposableA;
    bool transposableB;
    bool ndA;
    bool ndB;
    bool gmC;
};

inline void requirePositive(const TCubeTiling& t, At at)
{
    const struct {
        const char* name;
        int32_t value;
    } fields[] = {
        {"usedCoreNum", t.usedCoreNum}, {"M", t.M}, {"N", t.N}, {"Ka", t.Ka}, {"Kb", t.Kb},
        {"singleCoreM", t.singleCoreM}, {"singleCoreN", t.singleCoreN}, {"singleCoreK", t.singleCoreK},
        {"baseM", t.baseM}, {"baseN", t.baseN}, {"baseK", t.baseK}, {"depthA1", t.depthA1}, {"depthB1", t.depthB1},
        {"stepM", t.stepM}, {"stepN", t.stepN}, {"stepKa", t.stepKa}, {"stepKb", t.stepKb}, {"dbL0A", t.dbL0A},
        {"dbL0B", t.dbL0B}, {"dbL0C", t.dbL0C},
    };
    for (const auto& field : fields) {
        if (field.value <= 0) {
            fail(at, "matmul-tiling", "TCubeTiling.%s is %d; it must be positive", field.name, field.value);
        }
    }
}

inline void requireChoices(const TCubeTiling& t, At at)
{
    const auto refuse = [at](const char* field, int32_t value, const char* allowed) {
        fail(at, "matmul-tiling", "TCubeTiling.%s is %d; %s", field, value, allowed);
    };
    if (t.iterateOrder != 0 && t.iterateOrder != 1) refuse("iterateOrder", t.iterateOrder, "0 or 1");
    if (t.isBias != 0 && t.isBias != 1) refuse("isBias", t.isBias, "0 or 1");
    if (t.shareMode != 0) refuse("shareMode", t.shareMode, "only 0 is modelled");
    if (t.dbL0A > 2) refuse("dbL0A", t.dbL0A, "1 or 2");
    if (t.dbL0B > 2) refuse("dbL0B", t.dbL0B, "1 or 2");
    if (t.dbL0C > 2) refuse("dbL0C", t.dbL0C, "1 or 2");
    if (t.depthA1 % (t.stepM * t.stepKa) != 0 || t.depthA1 / (t.stepM * t.stepKa) > 2) {
        refuse("depthA1", t.depthA1, "stepM * stepKa, or twice that");
    }
    if (t.depthB1 % (t.stepN * t.stepKb) != 0 || t.depthB1 / (t.stepN * t.stepKb) > 2) {
        refuse("depthB1", t.depthB1, "stepN * stepKb, or twice that");
    }
    if (t.stepKa % t.stepKb != 0 && t.stepKb % t.stepKa != 0) {
        refuse("stepKb", t.stepKb, "stepKa and stepKb must divide one another");
    }
}

inline void requireAlignment(const TCubeTiling& t, const MatmulTypes& types, At at)
{
    const int c0 = static_cast<int>(kBlockBytes) / types.a;
    const int kUnit = types.transposableA || types.transposableB ? std::max(c0, 16) : c0;
    if (t.baseM % 16 != 0 || t.baseN % 16 != 0 || t.baseK % kUnit != 0) {
        fail(at, "matmul-tiling", "base block %d x %d x %d: M and N need multiples of 16, K of %d", t.baseM, t.baseN,
             t.baseK, kUnit);
    }
}

/// Capacities of the cube's buffers; raises the peaks.
inline void requireCapacity(const TCubeTiling& t, const MatmulTypes& types, At at)
{
    const int64_t l0a = int64_t{t.baseM} * t.baseK * types.a * t.dbL0A;
    const int64_t l0b = int64_t{t.baseN} * t.baseK * types.b * t.dbL0B;
    const int64_t l0c = int64_t{t.baseM} * t.baseN * 4 * t.dbL0C;
    const struct {
        const char* name;
        int64_t bytes;
        int64_t limit;
        uint64_t& peak;
    } parts[] = {
        {"L0A", l0a, device().l0a, world().peaks.l0a},
        {"L0B", l0b, device().l0b, world().peaks.l0b},
        {"L0C", l0c, device().l0c, world().peaks.l0c},
    };
    for (const auto& part : parts) {
        if (part.bytes > part.limit) {
            fail(at, "matmul-l0", "%s: the base block with its double buffers takes %lld bytes of %lld", part.name,
                 static_cast<long long>(part.bytes), static_cast<long long>(part.limit));
        }
        part.peak = std::max(part.peak, static_cast<uint64_t>(part.bytes));
    }
    uint64_t& l1 = core(at).l1Used;
    l1 += static_cast<uint64_t>(int64_t{t.depthA1} * t.baseM * t.baseK * types.a +
                                int64_t{t.depthB1} * t.baseN * t.baseK * types.b +
                                (t.isBias != 0 ? int64_t{t.baseN} * types.bias : 0));
    if (l1 > device().l1) {
        fail(at, "matmul-l1", "the Matmul objects take %llu bytes of L1, which has %u",
             static_cast<unsigned long long>(l1), device().l1);
    }
    world().peaks.l1 = std::max(world().peaks.l1, l1);
}

inline void requireBiasTable(const TCubeTiling& t, const MatmulTypes& types, At at)
{
    if (t.isBias == 0) {
        return;
    }
    if (t.baseN > kBiasTableColumns) {
        fail(at, "matmul-bias", "baseN is %d; the bias table holds %d columns", t.baseN, kBiasTableColumns);
    }
    if (types.bias == 2 && t.baseN % 32 != 0) {
        fail(at, "matmul-bias", "baseN is %d; a 16-bit bias needs a multiple of 32", t.baseN);
    }
}

inline void checkTiling(const TCubeTiling& tiling, const MatmulTypes& types, At at)
{
    requirePositive(tiling, at);
    requireChoices(tiling, at);
    requireAlignment(tiling, types, at);
    requireBiasTable(tiling, types, at);
    requireCapacity(tiling, types, at);
}

/// The shapes of the whole matrices in memory: row strides are derived from them.
struct OrgShape {
    int64_t m;
    int64_t n;
    int64_t ka;
    int64_t kb;
    int64_t kc;  // 0: n
};

/// What a Matmul object knows. It outlives the kernel's object, for the checks at the kernel's end.
struct MatmulState {
    MatmulTypes types{};
    TCubeTiling tiling{};
    OrgShape org{};
    int64_t singleM = 0;
    int64_t singleN = 0;
    int64_t singleK = 0;
    bool setA = false;
    bool setB = false;
    bool transposeA = false;
    bool transposeB = false;
    bool biasSet = false;
    bool biasDecided = false;  // SetBias or ClearBias was called
    bool iterating = false;
    bool ended = false;
    At registered{};
    std::vector<Clock> unwaited;
    UbView localWorkspace{};

    int64_t strideA() const { return transposeA ? org.m : org.ka; }
    int64_t strideB() const { return transposeB ? org.kb : org.n; }
    int64_t strideC() const { return org.kc != 0 ? org.kc : org.n; }
};

inline void postMessage()
{
    if (isMix(world().launch.type)) {
        ++world().messages;
        world().messageBytes += kMessageBytes;
    }
}

inline void checkOrgShape(const OrgShape& org, const MatmulState& state, At at)
{
    if (state.setA || state.setB) {
        fail(at, "matmul-org-shape", "SetOrgShape after SetTensorA or SetTensorB: set the shape first");
    }
    if (org.m <= 0 || org.n <= 0 || org.ka <= 0 || org.kb <= 0 || org.kc < 0) {
        fail(at, "matmul-org-shape", "SetOrgShape(%lld, %lld, %lld, %lld, %lld): every size must be positive",
             static_cast<long long>(org.m), static_cast<long long>(org.n), static_cast<long long>(org.ka),
             static_cast<long long>(org.kb), static_cast<long long>(org.kc));
    }
}

/// NZ matrices consist of whole blocks.
inline void checkNz(const MatmulState& s, At at)
{
    const struct {
        const char* name;
        bool nz;
        int64_t outer;
        int64_t inner;
    } operands[] = {
        {"A", !s.types.ndA, s.transposeA ? s.org.ka : s.org.m, s.transposeA ? s.org.m : s.org.ka},
        {"B", !s.types.ndB, s.transposeB ? s.org.n : s.org.kb, s.transposeB ? s.org.kb : s.org.n},
    };
    for (const auto& o : operands) {
        if (o.nz && (o.outer % 16 != 0 || o.inner % 16 != 0)) {
            fail(at, "matmul-nz", "%s: an NZ matrix of %lld x %lld; both sizes need multiples of 16", o.name,
                 static_cast<long long>(o.outer), static_cast<long long>(o.inner));
        }
    }
}

/// Where cube and vector share a core, ND matrices pass through UB in 32-byte pieces.
inline void checkSharedCore(const MatmulState& s, const Instruction& instruction)
{
    const At at = instruction.at();
    const int64_t rowA = s.transposeA ? s.singleM : s.singleK;
    const int64_t rowB = s.transposeB ? s.singleK : s.singleN;
    if ((s.types.ndA && (s.strideA() % 16 != 0 || rowA % 16 != 0)) ||
        (s.types.ndB && (s.strideB() % 16 != 0 || rowB % 16 != 0))) {
        fail(at, "matmul-nd-alignment", "rows of ND operands and their strides need multiples of 16 elements here");
    }
    if (s.types.gmC && (s.strideC() * s.types.c % kBlockBytes != 0 || s.singleN * s.types.c % kBlockBytes != 0)) {
        fail(at, "matmul-nd-alignment", "rows of an ND result need multiples of 32 bytes here");
    }
    if (!s.types.ndA && !s.types.ndB && !s.types.gmC && !s.biasSet) {
        return;
    }
    const int64_t bytes = std::max<int64_t>(s.tiling.shareUbSize, 2 * int64_t{s.tiling.transLength});
    if (s.tiling.transLength <= 0 || s.localWorkspace.buffer < 0 || s.localWorkspace.length < bytes) {
        fail(at, "matmul-local-workspace",
             "needs TCubeTiling.transLength and SetLocalWorkspace with %lld bytes of UB; transLength is %d, given %lld",
             static_cast<long long>(bytes), s.tiling.transLength,
             static_cast<long long>(s.localWorkspace.buffer < 0 ? 0 : s.localWorkspace.length));
    }
    checkView(s.localWorkspace, bytes, kBlockBytes, "the local workspace", instruction);
}

/// The local workspace holds nothing useful after a product.
inline void useLocalWorkspace(const MatmulState& s, Instruction& instruction)
{
    if (s.localWorkspace.buffer < 0) {
        return;
    }
    const auto address = static_cast<uint64_t>(s.localWorkspace.address);
    const auto bytes = static_cast<uint64_t>(s.localWorkspace.length);
    instruction.checkUbWrite(address, bytes);
    instruction.noteUbWrite(address, bytes, false);
}

/// Everything that must hold when the product starts.
inline void checkStart(const MatmulState& s, const Instruction& instruction)
{
    const At at = instruction.at();
    if (!s.setA || !s.setB) {
        fail(at, "matmul-operand", "%s was not set since the last product", s.setA ? "SetTensorB" : "SetTensorA");
    }
    if (s.biasSet && s.tiling.isBias == 0) {
        fail(at, "matmul-bias", "SetBias was called, but TCubeTiling.isBias is 0");
    }
    if (!s.biasSet && s.tiling.isBias != 0 && !s.biasDecided) {
        fail(at, "matmul-bias", "TCubeTiling.isBias is 1, but neither SetBias nor ClearBias was called");
    }
    if (s.singleM <= 0 || s.singleN <= 0 || s.singleK <= 0) {
        fail(at, "matmul-single-shape", "single shape %lld x %lld x %lld", static_cast<long long>(s.singleM),
             static_cast<long long>(s.singleN), static_cast<long long>(s.singleK));
    }
    if (s.singleK > s.tiling.singleCoreK) {
        fail(at, "matmul-single-k", "K is %lld, more than TCubeTiling.singleCoreK %d that sized the L1 buffers",
             static_cast<long long>(s.singleK), s.tiling.singleCoreK);
    }
    const struct {
        const char* name;
        int64_t stride;
        int64_t inner;
        int64_t limit;
    } operands[] = {
        {"A", s.strideA(), s.transposeA ? s.singleM : s.singleK, kMaxRowStride},
        {"B", s.strideB(), s.transposeB ? s.singleK : s.singleN, kMaxRowStride},
        {"C", s.strideC(), s.singleN, INT32_MAX},
    };
    for (const auto& o : operands) {
        if (o.stride < o.inner || o.stride > o.limit) {
            fail(at, "matmul-stride", "%s: row stride %lld for rows of %lld elements; at most %lld is possible", o.name,
                 static_cast<long long>(o.stride), static_cast<long long>(o.inner), static_cast<long long>(o.limit));
        }
    }
    checkNz(s, at);
    if (!device().splitCores) {
        checkSharedCore(s, instruction);
    }
}

}  // namespace twin
