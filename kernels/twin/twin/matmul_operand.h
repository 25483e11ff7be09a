// Operands and results of a Matmul: where they lie, in which layout, and how they are read and written.
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

using AscendC::CubeFormat;
using AscendC::GlobalTensor;
using AscendC::LocalTensor;
using AscendC::TPosition;

constexpr int64_t kFractal = 16;  // rows and columns of a block of the NZ layout, for 16-bit operands and all results

template <typename Type>
constexpr bool inGm = Type::pos == TPosition::GM;

template <typename Type>
constexpr bool inUb =
    Type::pos == TPosition::VECIN || Type::pos == TPosition::VECOUT || Type::pos == TPosition::VECCALC;

/// Operands in UB exist where cube and vector share a core, and in the cube's own layout only.
template <typename Type>
constexpr bool placeExists =
    inGm<Type> ? Type::format == CubeFormat::ND || __NPU_ARCH__ == 2002
               : inUb<Type> && Type::format == CubeFormat::NZ && __NPU_ARCH__ == 2002;

template <typename Type>
using MatmulTensor = std::conditional_t<inGm<Type>, GlobalTensor<typename Type::T>, LocalTensor<typename Type::T>>;

/// The element-type combinations of half, bfloat16 and float.
template <typename A, typename B, typename C, typename Bias>
constexpr bool matmulExists =
    std::is_same_v<A, B> &&
    ((isOneOf<A, half> && isOneOf<C, half, float> && isOneOf<Bias, half, float>) ||
     (isOneOf<A, bfloat16_t> && isOneOf<C, bfloat16_t, float> && isOneOf<Bias, float>) ||
     (isOneOf<A, float> && isOneOf<C, float> && isOneOf<Bias, float>));

/// Index of an element in the NZ layout of a matrix with `rows` rows (a multiple of 16).
inline int64_t nzIndex(int64_t row, int64_t column, int64_t rows)
{
    return column / kFractal * rows * kFractal + row * kFractal + column % kFractal;
}

/// Checks, records and converts a stretch of elements in global memory.
template <typename T>
void read(Instruction& instruction, const GlobalTensor<T>& tensor, int64_t index, int64_t count, float* to)
{
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(T);
    uint64_t offset = 0;
    GlobalMemory& memory = tensor.locate(static_cast<uint64_t>(index) * sizeof(T), bytes, instruction, offset);
    instruction.checkGmRead(memory, offset, bytes);
    instruction.noteGmRead(memory, offset, bytes);
    const T* from = reinterpret_cast<const T*>(memory.data + offset);
    std::copy(from, from + count, to);
}

/// The same in UB.
template <typename T>
void read(Instruction& instruction, const LocalTensor<T>& tensor, int64_t index, int64_t count, float* to)
{
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    const int64_t from = index * static_cast<int64_t>(sizeof(T));
    checkView(tensor.view(), from + bytes, kBlockBytes, "a Matmul operand", instruction);
    const uint64_t address = static_cast<uint64_t>(tensor.view().address + from);
    instruction.checkUbRead(address, bytes);
    instruction.noteUbRead(address, bytes);
    const T* values = reinterpret_cast<const T*>(instruction.ub(address));
    std::copy(values, values + count, to);
}

/// A part of a matrix.
struct Window {
    int64_t row;
    int64_t column;
    int64_t rows;
    int64_t columns;
};

/// A window as dense floats. `stride` is the row stride of ND; `height` the rows of the whole NZ matrix.
template <typename Type>
std::vector<float> gather(Instruction& instruction, const MatmulTensor<Type>& tensor, const Window& window,
                          int64_t stride, int64_t height)
{
    std::vector<float> values(static_cast<size_t>(window.rows * window.columns));
    for (int64_t row = 0; row < window.rows; ++row) {
        float* to = values.data() + row * window.columns;
        const int64_t from = window.row + row;
        if constexpr (Type::format == CubeFormat::ND) {
            read(instruction, tensor, from * stride + window.column, window.columns, to);
        } else {
            for (int64_t column = 0; column < window.columns; column += kFractal) {
                const int64_t width = std::min(kFractal, window.columns - column);
                read(instruction, tensor, nzIndex(from, window.column + column, height), width, to + column);
            }
        }
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

/// Counts what the cube loads of an operand; from UB it crosses no global memory.
template <typename T>
void charge(const GlobalTensor<T>& tensor, const Instruction& instruction, uint64_t elements)
{
    uint64_t offset = 0;
    tensor.locate(0, sizeof(T), instruction, offset).traffic.readByCube += elements * sizeof(T);
}

template <typename T>
void charge(const LocalTensor<T>&, const Instruction&, uint64_t)
{
}

template <typename C>
C roundResult(float value, const Instruction& instruction)
{
    if constexpr (std::is_same_v<C, half>) {
        return store<half>(value, std::isfinite(value), instruction);
    } else {
        return static_cast<C>(value);
    }
}

/// A block of the dense product to its place in global memory, row by row, added to what is there if `adds`.
template <typename C>
void writeBlock(Instruction& instruction, const GlobalTensor<C>& gm, const std::vector<float>& product, int64_t pitch,
                const Tile& tile, int64_t stride, bool adds)
{
    const uint64_t bytes = static_cast<uint64_t>(tile.columns) * sizeof(C);
    for (int64_t row = tile.m; row < tile.m + tile.rows; ++row) {
        uint64_t offset = 0;
        const uint64_t from = static_cast<uint64_t>(row * stride + tile.n) * sizeof(C);
        GlobalMemory& memory = gm.locate(from, bytes, instruction, offset);
        if (adds) {
            instruction.checkGmRead(memory, offset, bytes);
        }
        instruction.checkGmWrite(memory, offset, bytes);
        C* out = reinterpret_cast<C*>(memory.data + offset);
        const float* values = product.data() + row * pitch + tile.n;
        for (int64_t column = 0; column < tile.columns; ++column) {
            const float before = adds ? static_cast<float>(out[column]) : 0.0f;
            out[column] = roundResult<C>(before + values[column], instruction);
        }
        instruction.noteGmWrite(memory, offset, bytes);
        memory.traffic.writtenByCube += bytes;
    }
}

/// A block of the product to UB in the NZ layout. What fills it up to multiples of 16 is unknown.
template <typename C>
void writeBlock(Instruction& instruction, const LocalTensor<C>& local, const std::vector<float>& product, int64_t pitch,
                const Tile& tile)
{
    const int64_t height = ceilDiv(tile.rows, kFractal) * kFractal;
    const int64_t elements = height * ceilDiv(tile.columns, kFractal) * kFractal;
    const int64_t bytes = elements * static_cast<int64_t>(sizeof(C));
    checkView(local.view(), bytes, kBlockBytes, "the result", instruction);
    const auto start = static_cast<uint64_t>(local.view().address);
    instruction.checkUbWrite(start, bytes);
    std::memset(instruction.ub(start), 0xff, static_cast<size_t>(bytes));
    instruction.noteUbWrite(start, bytes, false);
    for (int64_t row = 0; row < tile.rows; ++row) {
        for (int64_t column = 0; column < tile.columns; ++column) {
            const C value = roundResult<C>(product[static_cast<size_t>((tile.m + row) * pitch + tile.n + column)],
                                           instruction);
            const uint64_t address = start + static_cast<uint64_t>(nzIndex(row, column, height)) * sizeof(C);
            std::memcpy(instruction.ub(address), &value, sizeof value);
            instruction.noteUbWrite(address, sizeof(C));
        }
    }
}

}  // namespace twin
