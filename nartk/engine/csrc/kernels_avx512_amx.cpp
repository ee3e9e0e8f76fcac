// int8 layers by AMX: the sums of 16 tokens and 16 outputs are a tile, a register of 16 rows of 64 bytes. One
// instruction adds to it the products of 64 inputs, in the time in which AVX-512 multiplies by 2 to 4 tokens. Sums of
// whole numbers have one result, so every bit is that of AVX-512, which computes all else.
#include <algorithm>

#include "kernels.h"
#include "portable.h"

#ifdef NARTK_AMX
ENABLE_ISA("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,amx-tile,amx-int8")
namespace nartk {
namespace {
#include "vector_avx512.inc"
#include "avx512.inc"
#include "activations.inc"
#ifdef NARTK_TILES  // a file of the tests
#include NARTK_TILES
#endif

constexpr int TILE = 16;           // rows of a tile, and outputs of one
constexpr int TILE_GROUPS = 16;    // groups of 4 inputs that a tile holds
constexpr int MOST_TOKENS = 32;    // that two tiles hold
constexpr int LEAST_TOKENS = 9;    // of fewer AVX-512 is as fast: it reads weights as fast as they come

// What the processor reads: how many rows of how many bytes each tile has.
struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// The sums of up to 2 tiles of tokens by 4 of outputs.
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
    _tile_stored(0, to.of[0], 4 * TILE);
    _tile_stored(1, to.of[1], 4 * TILE);
    _tile_stored(2, to.of[2], 4 * TILE);
    _tile_stored(3, to.of[3], 4 * TILE);
}

// Two tiles of tokens by a panel: sums 0 and 1 are the first tokens', 2 and 3 the others'.
void two_by_panel(const uint8_t* first, const uint8_t* second, int stride, const int8_t* w, int tiles, Sums& to) {
    zero_sums();
    for (int t = 0; t < tiles; t++) {
        const int8_t* weights = w + (size_t)t * TILE_GROUPS * PANEL * 4;
        _tile_loadd(4, first + t * 64, stride);
        _tile_loadd(6, weights, 4 * PANEL);
        _tile_loadd(7, weights + 64, 4 * PANEL);
        _tile_dpbusd(0, 4, 6);
        _tile_loadd(5, second + t * 64, stride);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    store_sums(to);
}

// A tile of tokens by two panels, the second of which lies so many bytes behind the first.
void one_by_panels(const uint8_t* x, int stride, const int8_t* w, size_t behind, int tiles, Sums& to) {
    zero_sums();
    for (int t = 0; t < tiles; t++) {
        const int8_t* weights = w + (size_t)t * TILE_GROUPS * PANEL * 4;
        _tile_loadd(4, x + t * 64, stride);
        _tile_loadd(6, weights, 4 * PANEL);
        _tile_loadd(7, weights + 64, 4 * PANEL);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_loadd(6, weights + behind, 4 * PANEL);
        _tile_loadd(7, weights + behind + 64, 4 * PANEL);
        _tile_dpbusd(2, 4, 6);
        _tile_dpbusd(3, 4, 7);
    }
    store_sums(to);
}

// What is left of a block's 16 outputs from `at` on: inputs that fill no tile, and how sums become outputs.
void finish(const Linear& w, const int32_t (*sums)[TILE], const uint8_t* x, const Grid* grids, int stride, int from,
            int rows, int tiles, float* y, int ldy, int at, Epilogue epilogue) {
    const int groups = w.groups();
    const int8_t* weights =
        (const int8_t*)w.weights + ((size_t)(at / PANEL) * groups * PANEL + at % PANEL) * Int8::GROUP;
    const F16 bias = load(w.bias + at);
    for (int r = from; r < rows; r++) {
        __m512i s = _mm512_load_si512(sums[r]);
        for (int g = tiles * TILE_GROUPS; g < groups; g++)
            s = Int8::step(s, Int8::load_weight(weights + (size_t)g * PANEL * Int8::GROUP),
                           x + (size_t)r * stride + (size_t)g * Int8::GROUP);
        const F16 made = activate(add(Int8::finish(s, w, grids + r, at), bias), epilogue.activation);
        float* out = y + (size_t)r * ldy + at;
        store(out, epilogue.residual ? add(load(out), made) : made);
    }
}

void int8_linear(const Linear& w, const uint8_t* x, const Grid* grids, int n, int stride, float* y, int ldy, int first,
                 int last, Epilogue epilogue) {
    // All chunks are of one size, so that tiles are shaped once: the last begins with tokens of the one before,
    // which are computed twice and written once.
    const int chunks = (n + MOST_TOKENS - 1) / MOST_TOKENS, size = (n + chunks - 1) / chunks;
    const int above = size <= TILE ? size : (size + 1) / 2, below = size - above;
    const int tiles = w.groups() / TILE_GROUPS;
    const size_t behind = (size_t)w.groups() * PANEL * Int8::GROUP;  // bytes of a panel
    Shapes shapes;
    for (int t = 0; t < 8; t++) {
        shapes.bytes[t] = 64;
        shapes.rows[t] = (uint8_t)(t >= 6 ? TILE_GROUPS : below && (t == 2 || t == 3 || t == 5) ? below : above);
    }
    _tile_loadconfig(&shapes);
    Sums sums;
    for (int panel = first; panel < last;) {
        const int8_t* weights = (const int8_t*)w.weights + panel * behind;
        const int panels = !below && panel + 1 < last ? 2 : 1;
        for (int done = 0; done < n; done += size) {
            const int begin = std::min(done, n - size);
            const auto write = [&](int v, int at, int tokens, int output) {
                finish(w, sums.of[v], x + (size_t)at * stride, grids + at, stride, std::max(done - at, 0), tokens,
                       tiles, y + (size_t)at * ldy, ldy, output, epilogue);
            };
            const uint8_t* rows = x + (size_t)begin * stride;
            if (below)
                two_by_panel(rows, rows + (size_t)above * stride, stride, weights, tiles, sums);
            else
                one_by_panels(rows, stride, weights, panels == 2 ? behind : 0, tiles, sums);
            for (int v = 0; v < 2 * panels; v++) write(v, begin, above, panel * PANEL + v * LANES);
            for (int v = 0; below && v < 2; v++) write(2 + v, begin + above, below, panel * PANEL + v * LANES);
        }
        panel += panels;
    }
    _tile_release();
}

void linear(const Linear& w, const void* x, const void* scales, int n, int stride, float* y, int ldy, int first,
            int last, Epilogue epilogue) {
    if (w.type == Type::int8 && n >= LEAST_TOKENS)
        int8_linear(w, (const uint8_t*)x, (const Grid*)scales, n, stride, y, ldy, first, last, epilogue);
    else
        kernels_avx512_bf16()->linear(w, x, scales, n, stride, y, ldy, first, last, epilogue);
}

}  // namespace
const Kernels* kernels_avx512_amx() {
    static const Kernels table = [] {
        Kernels made = *kernels_avx512_bf16();
        made.name = "avx512_amx";
        made.linear = linear;
        return made;
    }();
    return &table;
}
}  // namespace nartk
DISABLE_ISA
#endif
