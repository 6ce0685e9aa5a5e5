/* The register-blocked product of a batch, once per width of vector; the including file says what a vector is:
 *   VECTOR, V_LANES          its type, and its 32-bit lanes
 *   V_ZERO, V_LOAD, V_STORE, V_ADD, V_FOUR (one dword everywhere)
 *   TILE_VECTORS             vectors of rows in a pass: with TILE observations as many sums as registers hold
 *   V_AND, V_OR, V_RIGHT     and, or, and a shift of 32-bit lanes by a constant
 *   DOT_BYTES(acc, a, w) or DOT_WORDS(acc, a, w), and where it exists DOT_LEVEL(acc, w, a)
 */

/* Each run of four columns in a step of w4, w3 or w2 becomes a step of its own; as four_levels, in vectors. */
#ifdef LEVEL_PRODUCTS
INLINE void unpack_levels(const uint8_t *weights, ptrdiff_t stride, int rows, ptrdiff_t steps, uint8_t *panel, const int bits) {
    const VECTOR mask = V_ALL(0x01010101 * ((1 << bits) - 1)), high = V_ALL(0x06060606), low = V_ALL(0x01010101);
    ptrdiff_t run = rows * 4;
    for (ptrdiff_t s = 0; s < steps; s++, weights += WORDS_OF(bits) * stride, panel += PARTS(bits) * run)
        for (int r = 0; r < rows * 4; r += 4 * V_LANES) {
            VECTOR t = V_LOAD(weights + r);
            V_STORE(panel + r, V_AND(t, mask));
            V_STORE(panel + r + run, V_AND(V_RIGHT(t, bits), mask));
            if (bits == 2) {
                V_STORE(panel + r + 2 * run, V_AND(V_RIGHT(t, 4), mask));
                V_STORE(panel + r + 3 * run, V_AND(V_RIGHT(t, 6), mask));
            }
            if (bits != 3) continue;
            VECTOR u = V_LOAD(weights + stride + r), v = V_LOAD(weights + 2 * stride + r);
            V_STORE(panel + r + 2 * run, V_AND(u, mask));
            V_STORE(panel + r + 3 * run, V_AND(V_RIGHT(u, 3), mask));
            V_STORE(panel + r + 4 * run, V_AND(v, mask));
            V_STORE(panel + r + 5 * run, V_AND(V_RIGHT(v, 3), mask));
            V_STORE(panel + r + 6 * run, V_OR(V_AND(V_RIGHT(t, 5), high), V_AND(V_RIGHT(v, 6), low)));
            V_STORE(panel + r + 7 * run, V_OR(V_AND(V_RIGHT(u, 5), high), V_AND(V_RIGHT(v, 7), low)));
        }
}
#endif

INLINE void tile(const enum batch_mode mode, const uint8_t *w, ptrdiff_t row_bytes, const uint8_t *codes,
                 ptrdiff_t stride, ptrdiff_t steps, int32_t *sums, int add, const uint8_t *ahead, const int n,
                 const int vectors) {
    VECTOR acc[TILE][TILE_VECTORS];
    ptrdiff_t ahead_step = ahead ? 128 : 0;
    if (!ahead) ahead = codes;
    _Pragma("GCC unroll 6") for (int o = 0; o < n; o++)
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) acc[o][v] = V_ZERO;
    for (ptrdiff_t s = 0; s < steps; s++, w += row_bytes, ahead += ahead_step, codes += 4) {
        VECTOR weight[TILE_VECTORS];
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) weight[v] = V_LOAD(w + 4 * V_LANES * v);
        __builtin_prefetch(ahead, 0, 2), __builtin_prefetch(ahead + 64, 0, 2);
        _Pragma("GCC unroll 6") for (int o = 0; o < n; o++) {
            VECTOR a = V_FOUR(codes + o * stride);
            _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) {
#ifndef BYTE_PRODUCTS
                if (mode == WORDS) acc[o][v] = DOT_WORDS(acc[o][v], a, weight[v]);
#endif
#ifdef LEVEL_PRODUCTS
                if (mode == LEVELS) acc[o][v] = DOT_LEVEL(acc[o][v], weight[v], a);
#endif
#ifdef BYTE_PRODUCTS
                if (mode == BYTES) acc[o][v] = DOT_BYTES(acc[o][v], a, weight[v]);
#endif
            }
        }
    }
    _Pragma("GCC unroll 6") for (int o = 0; o < n; o++) {
        _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++) {
            int32_t *sum = sums + o * PANEL + v * V_LANES;
            V_STORE(sum, add ? V_ADD(acc[o][v], V_LOAD(sum)) : acc[o][v]);
        }
    }
}

INLINE void rows_of_tiles(const enum batch_mode mode, const uint8_t *panel, int blocks, const uint8_t *codes,
                          ptrdiff_t stride, ptrdiff_t steps, int32_t *sums, int add, const uint8_t *ahead, const int n) {
    ptrdiff_t row_bytes = blocks * BLOCK * 4, first = 0;
    for (; first + TILE_VECTORS * V_LANES <= blocks * BLOCK; first += TILE_VECTORS * V_LANES, ahead = NULL)
        tile(mode, panel + first * 4, row_bytes, codes, stride, steps, sums + first, add, ahead, n, TILE_VECTORS);
    if (TILE_VECTORS * V_LANES > BLOCK)
        for (; first < blocks * BLOCK; first += V_LANES)
            tile(mode, panel + first * 4, row_bytes, codes, stride, steps, sums + first, add, ahead, n, 1);
}

#define OBSERVATIONS(mode)                                                                                      \
    switch (n) {                                                                                                \
    case 1: rows_of_tiles(mode, panel, blocks, codes, stride, steps, sums, add, ahead, 1); break;                \
    case 2: rows_of_tiles(mode, panel, blocks, codes, stride, steps, sums, add, ahead, 2); break;                \
    case 3: rows_of_tiles(mode, panel, blocks, codes, stride, steps, sums, add, ahead, 3); break;                \
    case 4: rows_of_tiles(mode, panel, blocks, codes, stride, steps, sums, add, ahead, 4); break;                \
    case 5: rows_of_tiles(mode, panel, blocks, codes, stride, steps, sums, add, ahead, 5); break;                \
    default: rows_of_tiles(mode, panel, blocks, codes, stride, steps, sums, add, ahead, 6);                      \
    }

static void multiply(enum batch_mode mode, const uint8_t *panel, int blocks, const uint8_t *codes, ptrdiff_t stride,
                     ptrdiff_t steps, int n, int32_t *sums, int add, const uint8_t *ahead) {
    switch (mode) {
#ifdef BYTE_PRODUCTS
    case BYTES: OBSERVATIONS(BYTES) break;
#endif
#ifdef LEVEL_PRODUCTS
    case LEVELS: OBSERVATIONS(LEVELS) break;
#endif
#ifndef BYTE_PRODUCTS
    case WORDS: OBSERVATIONS(WORDS) break;
#endif
    default: break;
    }
}

/* Multiply-adds by the hundred with nothing to load: what the instruction set can do, as bytes (or words) and as floats. */
#ifdef BYTE_PRODUCTS
#define PEAK_DOT DOT_BYTES
#define PEAK_EACH 4
#else
#define PEAK_DOT DOT_WORDS
#define PEAK_EACH 2
#endif
#define HIDE(v) __asm__ volatile("" : "+x"(v)) /* so that no product is left out, or computed once for all */
#define PEAK(name, TYPE, ZERO, PRODUCT, each)                                                                   \
    static ptrdiff_t name(ptrdiff_t repeats) {                                                                  \
        TYPE acc[12], a = ZERO, w = ZERO;                                                                       \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) {                                                 \
            acc[i] = ZERO;                                                                                      \
            HIDE(acc[i]);                                                                                       \
        }                                                                                                       \
        HIDE(a);                                                                                                \
        for (ptrdiff_t r = 0; r < repeats; r++)                                                                 \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) {                                             \
                HIDE(w);                                                                                        \
                acc[i] = PRODUCT(acc[i], a, w);                                                                 \
            }                                                                                                   \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) HIDE(acc[i]);                                     \
        return repeats * 12 * V_LANES * (each);                                                                 \
    }
PEAK(peak_integers, VECTOR, V_ZERO, PEAK_DOT, PEAK_EACH)
PEAK(peak_floats, F_VECTOR, F_ZERO, F_PRODUCT, 1)
#define PEAKS peak_integers, peak_floats
