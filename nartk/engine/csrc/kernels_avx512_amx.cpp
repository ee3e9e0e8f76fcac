// int8 and bf16 layers by AMX: the sums of 16 tokens and 16 outputs are a tile, a register of 16 rows of 64 bytes. One
// instruction adds to it the products of 64 inputs, 32 of bf16, in the time in which AVX-512 multiplies by 2 to 4
// tokens. Sums of whole numbers have one result, so int8's bits are those of AVX-512. In bf16 an instruction sums 16
// products of inputs at even positions, 16 of odd ones, and adds both together to the tile: another order than
// AVX-512's, so that one token is multiplied in tiles too. AVX-512 computes all else.
#include "kernels.h"
#include "portable.h"

#ifdef NARTK_AMX
ENABLE_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,amx-tile,amx-int8,amx-bf16")
namespace nartk {
namespace {
#include "vector_avx512.inc"
#include "avx512.inc"
#include "bf16_avx512.inc"
#include "activations.inc"
#ifdef NARTK_TILES  // a file of the tests
#include NARTK_TILES
#endif

constexpr int TILE = 16;         // rows of a tile, and outputs of one
constexpr int GROUPS = 16;       // groups of 4 bytes of inputs that a tile holds
constexpr int BYTES = 64;        // of a row of a tile, and of a token's inputs in it
constexpr int MOST_TOKENS = 32;  // that two tiles hold
// Tokens of int8. Fewer AVX-512 multiplies as fast: it reads weights as fast as they come.
constexpr int LEAST_TOKENS = 9;

// What the processor reads: how many rows of how many bytes each tile has.
struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// The sums of up to 2 tiles of tokens by 4 of outputs, as bits: whole numbers or fp32.
struct alignas(64) Sums {
    int32_t of[4][TILE][TILE];
};

// Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights, whose rows are groups of inputs, 128 bytes apart.
inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

inline void store_sums(Sums& to) {
    _tile_stored(0, to.of[0], BYTES);
    _tile_stored(1, to.of[1], BYTES);
    _tile_stored(2, to.of[2], BYTES);
    _tile_stored(3, to.of[3], BYTES);
}

// Numbers of tiles are part of the instruction.
#define MULTIPLY(to, inputs, weights)          \
    if constexpr (Op::GROUP == 4)              \
        _tile_dpbusd(to, inputs, weights);     \
    else                                       \
        _tile_dpbf16ps(to, inputs, weights)

// Two tiles of tokens by a panel: sums 0 and 1 are the first tokens', 2 and 3 the others'. Strides in bytes.
template <class Op>
void two_by_panel(const char* first, const char* second, size_t stride, const char* w, int tiles, Sums& to) {
    zero_sums();
    for (int t = 0; t < tiles; t++) {
        const char* weights = w + (size_t)t * GROUPS * 2 * BYTES;
        _tile_loadd(4, first + t * BYTES, stride);
        _tile_loadd(6, weights, 2 * BYTES);
        _tile_loadd(7, weights + BYTES, 2 * BYTES);
        MULTIPLY(0, 4, 6);
        _tile_loadd(5, second + t * BYTES, stride);
        MULTIPLY(1, 4, 7);
        MULTIPLY(2, 5, 6);
        MULTIPLY(3, 5, 7);
    }
    store_sums(to);
}

// A tile of tokens by two panels, the second of which lies so many bytes behind the first.
template <class Op>
void one_by_panels(const char* x, size_t stride, const char* w, size_t behind, int tiles, Sums& to) {
    zero_sums();
    for (int t = 0; t < tiles; t++) {
        const char* weights = w + (size_t)t * GROUPS * 2 * BYTES;
        _tile_loadd(4, x + t * BYTES, stride);
        _tile_loadd(6, weights, 2 * BYTES);
        _tile_loadd(7, weights + BYTES, 2 * BYTES);
        MULTIPLY(0, 4, 6);
        MULTIPLY(1, 4, 7);
        _tile_loadd(6, weights + behind, 2 * BYTES);
        _tile_loadd(7, weights + behind + BYTES, 2 * BYTES);
        MULTIPLY(2, 4, 6);
        MULTIPLY(3, 4, 7);
    }
    store_sums(to);
}

inline Int8::Sum as_sum(__m512i bits, Int8) { return bits; }
inline Bf16::Sum as_sum(__m512i bits, Bf16) { return {_mm512_castsi512_ps(bits)}; }

// What is left of a block's 16 outputs from `at` on: inputs that fill no tile, and how sums become outputs.
template <class Op>
void finish(const Linear& w, const int32_t (*sums)[TILE], const typename Op::In* x, const typename Op::Scale* scales,
            int stride, int from, int rows, int tiles, float* y, int ldy, int at, Epilogue epilogue) {
    const int groups = w.groups();
    const typename Op::Weight* weights =
        (const typename Op::Weight*)w.weights + ((size_t)(at / PANEL) * groups * PANEL + at % PANEL) * Op::GROUP;
    for (int r = from; r < rows; r++) {
        typename Op::Sum s = as_sum(_mm512_load_si512(sums[r]), Op());
        for (int g = tiles * GROUPS; g < groups; g++)
            s = Op::step(s, Op::load_weight(weights + (size_t)g * PANEL * Op::GROUP),
                         x + (size_t)r * stride + (size_t)g * Op::GROUP);
        leave(Op::finish(s, w, scales ? scales + r : nullptr, at), w.bias + at, epilogue, y + (size_t)r * ldy + at);
    }
}

template <class Op>
void in_tiles(const Linear& w, const void* inputs, const void* of_tokens, int n, int stride, float* y, int ldy,
              int first, int last, Epilogue epilogue) {
    using In = typename Op::In;
    const In* x = (const In*)inputs;
    const auto scales = (const typename Op::Scale*)of_tokens;
    // All chunks are of one size, so that tiles are shaped once: the last begins with tokens of the one before,
    // which are computed twice and written once.
    const int chunks = (n + MOST_TOKENS - 1) / MOST_TOKENS, size = (n + chunks - 1) / chunks;
    const int above = size <= TILE ? size : (size + 1) / 2, below = size - above;
    const int tiles = w.groups() / GROUPS;
    const size_t apart = (size_t)stride * sizeof(In), behind = (size_t)w.groups() * 2 * BYTES;  // bytes of a panel
    Shapes shapes;
    for (int t = 0; t < 8; t++) {
        shapes.bytes[t] = BYTES;
        shapes.rows[t] = (uint8_t)(t >= 6 ? GROUPS : below && (t == 2 || t == 3 || t == 5) ? below : above);
    }
    _tile_loadconfig(&shapes);
    Sums sums;
    for (int panel = first; panel < last;) {
        const char* weights = (const char*)w.weights + panel * behind;
        const int panels = !below && panel + 1 < last ? 2 : 1;
        for (int done = 0; done < n; done += size) {
            const int begin = done + size <= n ? done : n - size;
            const auto write = [&](int v, int at, int tokens, int output) {
                finish<Op>(w, sums.of[v], x + (size_t)at * stride, scales ? scales + at : nullptr, stride,
                           done > at ? done - at : 0, tokens, tiles, y + (size_t)at * ldy, ldy, output, epilogue);
            };
            const char* rows = (const char*)(x + (size_t)begin * stride);
            if (below)
                two_by_panel<Op>(rows, rows + above * apart, apart, weights, tiles, sums);
            else
                one_by_panels<Op>(rows, apart, weights, panels == 2 ? behind : 0, tiles, sums);
            for (int v = 0; v < 2 * panels; v++) write(v, begin, above, panel * PANEL + v * LANES);
            for (int v = 0; below && v < 2; v++) write(2 + v, begin + above, below, panel * PANEL + v * LANES);
        }
        panel += panels;
    }
    _tile_release();
}

}  // namespace

void linear_amx(const Linear& w, const void* x, const void* scales, int n, int stride, float* y, int ldy, int first,
                int last, Epilogue epilogue) {
    const bool tiled = w.type == Type::bf16 || (w.type == Type::int8 && n >= LEAST_TOKENS);
    const auto of = !tiled ? kernels_avx512_bf16()->linear : w.type == Type::bf16 ? in_tiles<Bf16> : in_tiles<Int8>;
    of(w, x, w.type == Type::bf16 ? nullptr : scales, n, stride, y, ldy, first, last, epilogue);
}

}  // namespace nartk
DISABLE_ISA
#endif
