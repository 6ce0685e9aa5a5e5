/* The products over 256-bit vectors; the including file says how bytes are multiplied and added:
 *   DOT_WEIGHTS(acc, codes, w)   activation bytes by signed weight bytes, as BYTE_OFFSET says
 *   DOT_LEVELS(acc, levels, a)   levels (0..15) by signed activation bytes
 *   DOT_WORDS(acc, a, b)         signed 16-bit by signed 16-bit
 *   ADD_COLUMNS(acc, codes, ...) four columns, bytes interleaved two by two, by four unsigned codes,
 *                                times 2^COLUMN_SHIFT; 32 bits hold the sums of COLUMN_RUN columns
 */
#define LEVEL_PRODUCTS
#include "float_rows.h"

#define AHEAD 2048 /* bytes: far enough for DRAM, near enough to stay in the first-level cache */
#define PREFETCH(p) _mm_prefetch((const char *)(p) + AHEAD, _MM_HINT_T0)
#define LOAD(p) _mm256_loadu_si256((const void *)(p))
#define UNROLL _Pragma("GCC unroll 8")

INLINE __m256i four_bytes(const uint8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return _mm256_set1_epi32(word);
}

/* Eight sums in flight hide the latency of the products; a panel's 64 rows are eight vectors. */
#define BY_BLOCKS(product)                                                                                      \
    switch (blocks) {                                                                                           \
    case 4: product(weights, codes, steps, sums, 8, 1); break;                                                   \
    case 3: product(weights, codes, steps, sums, 6, 1); break;                                                   \
    case 2: product(weights, codes, steps, sums, 4, 2); break;                                                   \
    default: product(weights, codes, steps, sums, 2, 4);                                                         \
    }

#define FOLD(n, unroll)                                                                                         \
    UNROLL for (int v = 0; v < n; v++) {                                                                        \
        for (int u = 1; u < unroll; u++) acc[v] = _mm256_add_epi32(acc[v], acc[u * n + v]);                       \
        _mm256_storeu_si256((void *)(sums + 8 * v), acc[v]);                                                     \
    }

INLINE void w8a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int n,
                    const int unroll) {
    __m256i acc[8];
    UNROLL for (int i = 0; i < n * unroll; i++) acc[i] = _mm256_setzero_si256();
    for (ptrdiff_t s = 0; s < steps; s += unroll, codes += 4 * unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            __m256i a = four_bytes(codes + 4 * u);
            UNROLL for (int v = 0; v < n; v++, w += 32) {
                if (v % 2 == 0) PREFETCH(w);
                acc[u * n + v] = DOT_WEIGHTS(acc[u * n + v], a, LOAD(w));
            }
        }
    FOLD(n, unroll)
}

static void w8a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w8a8_of)
}

/* Two blocks at a time, so that their eight vectors of four rows (two partial sums a row) stay in registers. */
INLINE void w8a16_of(const uint8_t *w, const int16_t *codes, ptrdiff_t steps, ptrdiff_t stride, int32_t *sums,
                     const int n) {
    __m256i acc[8];
    UNROLL for (int i = 0; i < n; i++) acc[i] = _mm256_setzero_si256();
    for (ptrdiff_t s = 0; s < steps; s++, w += stride) {
        long long four;
        memcpy(&four, codes + 4 * s, 8);
        __m256i a = _mm256_set1_epi64x(four);
        UNROLL for (int v = 0; v < n; v++) {
            if (v % 4 == 0) PREFETCH(w + 16 * v);
            acc[v] = DOT_WORDS(acc[v], a, _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(w + 16 * v))));
        }
    }
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    UNROLL for (int v = 0; v < n; v++) {
        __m256i both = _mm256_add_epi32(acc[v], _mm256_srli_epi64(acc[v], 32));
        both = _mm256_permutevar8x32_epi32(both, even);
        _mm_storeu_si128((void *)(sums + 4 * v), _mm256_castsi256_si128(both));
    }
}

static void w8a16(const uint8_t *weights, const int16_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    ptrdiff_t stride = blocks * BLOCK * 4;
    for (; blocks >= 2; blocks -= 2, weights += 2 * BLOCK * 4, sums += 2 * BLOCK)
        w8a16_of(weights, codes, steps, stride, sums, 8);
    if (blocks) w8a16_of(weights, codes, steps, stride, sums, 4);
}

INLINE void w4a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int n,
                    const int unroll) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i acc[8];
    UNROLL for (int i = 0; i < n * unroll; i++) acc[i] = _mm256_setzero_si256();
    for (ptrdiff_t s = 0; s < steps; s += unroll, codes += 8 * unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            __m256i a = four_bytes(codes + 8 * u), b = four_bytes(codes + 8 * u + 4);
            UNROLL for (int v = 0; v < n; v++, w += 32) {
                __m256i t = LOAD(w), low = _mm256_and_si256(t, mask);
                __m256i high = _mm256_and_si256(_mm256_srli_epi16(t, 4), mask);
                if (v % 2 == 0) PREFETCH(w);
                acc[u * n + v] = DOT_LEVELS2(acc[u * n + v], low, a, high, b);
            }
        }
    FOLD(n, unroll)
}

static void w4a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w4a8_of)
}

INLINE void w3a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int n,
                    const int unroll) {
    (void)unroll;
    const __m256i mask = _mm256_set1_epi8(7), top = _mm256_set1_epi8(6), low = _mm256_set1_epi8(1);
    __m256i acc[8];
    UNROLL for (int i = 0; i < n; i++) acc[i] = _mm256_setzero_si256();
    for (ptrdiff_t s = 0; s < steps; s++, codes += 32, w += 3 * 32 * n)
        UNROLL for (int v = 0; v < n; v++) {
            __m256i t[3];
            UNROLL for (int i = 0; i < 3; i++) {
                const uint8_t *word = w + 32 * (i * n + v);
                t[i] = LOAD(word);
                if (v % 2 == 0) PREFETCH(word);
                acc[v] = DOT_LEVELS2(acc[v], _mm256_and_si256(t[i], mask), four_bytes(codes + 8 * i),
                                     _mm256_and_si256(_mm256_srli_epi16(t[i], 3), mask), four_bytes(codes + 8 * i + 4));
            }
            __m256i seventh = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(t[0], 5), top),
                                              _mm256_and_si256(_mm256_srli_epi16(t[2], 6), low));
            __m256i eighth = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(t[1], 5), top),
                                             _mm256_and_si256(_mm256_srli_epi16(t[2], 7), low));
            acc[v] = DOT_LEVELS2(acc[v], seventh, four_bytes(codes + 24), eighth, four_bytes(codes + 28));
        }
    FOLD(n, 1)
}

static void w3a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w3a8_of)
}

INLINE void w2a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int n,
                    const int unroll) {
    const __m256i mask = _mm256_set1_epi8(3);
    __m256i acc[8];
    UNROLL for (int i = 0; i < n * unroll; i++) acc[i] = _mm256_setzero_si256();
    for (ptrdiff_t s = 0; s < steps; s += unroll, codes += 16 * unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            __m256i a = four_bytes(codes + 16 * u), b = four_bytes(codes + 16 * u + 4);
            __m256i c = four_bytes(codes + 16 * u + 8), d = four_bytes(codes + 16 * u + 12);
            UNROLL for (int v = 0; v < n; v++, w += 32) {
                __m256i t = LOAD(w), t0 = _mm256_and_si256(t, mask);
                __m256i t1 = _mm256_and_si256(_mm256_srli_epi16(t, 2), mask);
                __m256i t2 = _mm256_and_si256(_mm256_srli_epi16(t, 4), mask);
                __m256i t3 = _mm256_and_si256(_mm256_srli_epi16(t, 6), mask);
                if (v % 2 == 0) PREFETCH(w);
                acc[u * n + v] = DOT_LEVELS2(acc[u * n + v], t0, a, t1, b);
                acc[u * n + v] = DOT_LEVELS2(acc[u * n + v], t2, c, t3, d);
            }
        }
    FOLD(n, unroll)
}

static void w2a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w2a8_of)
}

/* Add 64 rows' sums of a run of listed columns, four at a time; see avx512.c on the order of the sums. */
INLINE void add_columns(const uint8_t *weights, ptrdiff_t rows, const uint16_t *columns, const uint8_t *codes,
                        ptrdiff_t count, ptrdiff_t ahead, int32_t *sums) {
    __m256i acc[8];
    UNROLL for (int i = 0; i < 8; i++) acc[i] = _mm256_setzero_si256();
    for (ptrdiff_t s = 0; s < count; s += 4) {
        const uint8_t *w[4];
        UNROLL for (int i = 0; i < 4; i++) w[i] = weights + columns[s + i] * rows;
        if (s + 64 < ahead) UNROLL for (int i = 0; i < 4; i++) __builtin_prefetch(weights + columns[s + 64 + i] * rows);
        UNROLL for (int h = 0; h < 2; h++) {
            __m256i c0 = LOAD(w[0] + 32 * h), c1 = LOAD(w[1] + 32 * h), c2 = LOAD(w[2] + 32 * h);
            __m256i c3 = LOAD(w[3] + 32 * h), *sum = acc + 4 * h;
            ADD_COLUMNS(sum, codes + s, _mm256_unpacklo_epi8(c0, c1), _mm256_unpackhi_epi8(c0, c1),
                        _mm256_unpacklo_epi8(c2, c3), _mm256_unpackhi_epi8(c2, c3));
        }
    }
    UNROLL for (int i = 0; i < 8; i++) acc[i] = _mm256_srai_epi32(acc[i], COLUMN_SHIFT);
    UNROLL for (int i = 0; i < 8; i++) { /* vector i: rows 8 i to 8 i + 7, from two of the four sums of its half */
        __m256i *sum = acc + 4 * (i / 4) + 2 * (i % 2);
        __m256i ordered = i % 4 < 2 ? _mm256_permute2x128_si256(sum[0], sum[1], 0x20)
                                    : _mm256_permute2x128_si256(sum[0], sum[1], 0x31);
        _mm256_storeu_si256((void *)(sums + 8 * i), _mm256_add_epi32(LOAD(sums + 8 * i), ordered));
    }
}

static void w8u8(const uint8_t *weights, const uint8_t *next, const uint16_t *columns, const uint8_t *codes,
                 ptrdiff_t count, int blocks, int32_t *sums) {
    (void)next;
    ptrdiff_t rows = blocks * BLOCK;
    for (ptrdiff_t first = 0; first < rows; first += 64, weights += 64, sums += 64) {
        memset(sums, 0, 64 * sizeof *sums);
        for (ptrdiff_t s = 0; s < count; s += COLUMN_RUN) {
            ptrdiff_t rest = count - s;
            add_columns(weights, rows, columns + s, codes + s, rest < COLUMN_RUN ? rest : COLUMN_RUN, rest, sums);
        }
    }
}

INLINE void float_of(const uint8_t *w, const uint8_t *next, const uint16_t *columns, const float *x, ptrdiff_t count,
                     float *sums, const int n, const int unroll, const int bytes) {
    __m256 acc[8];
    UNROLL for (int i = 0; i < n * unroll; i++) acc[i] = _mm256_setzero_ps();
    for (ptrdiff_t s = 0; s < count; s += unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            const uint8_t *column = w + (ptrdiff_t)columns[s + u] * (n * 8 * bytes);
            prefetch_columns(w, next, columns, s + u, count, n * 8 * bytes, 1);
            __m256 factor = _mm256_set1_ps(x[s + u]);
            UNROLL for (int v = 0; v < n; v++) {
                const void *p = column + v * 8 * bytes;
                __m256 t = bytes == 2 ? _mm256_cvtph_ps(_mm_loadu_si128(p)) : _mm256_loadu_ps(p);
                acc[u * n + v] = _mm256_fmadd_ps(t, factor, acc[u * n + v]);
            }
        }
    UNROLL for (int v = 0; v < n; v++) {
        for (int u = 1; u < unroll; u++) acc[v] = _mm256_add_ps(acc[v], acc[u * n + v]);
        _mm256_storeu_ps(sums + 8 * v, acc[v]);
    }
}

#define FLOAT_VECTORS 2
#define FLOAT_UNROLL_1 4
#define FLOAT_UNROLL_2 2
#define FLOAT_UNROLL_3 1
#define FLOAT_UNROLL_4 1
#include "float_blocks.h"

static uint64_t read_lines(const uint8_t *data, ptrdiff_t lines) {
    __m256i acc[4];
    for (int i = 0; i < 4; i++) acc[i] = _mm256_setzero_si256();
    for (ptrdiff_t i = 0; i + 2 <= lines; i += 2, data += 128)
        UNROLL for (int j = 0; j < 4; j++) {
            if (j % 2 == 0) PREFETCH(data + 32 * j);
            acc[j] = _mm256_add_epi64(acc[j], LOAD(data + 32 * j));
        }
    uint64_t words[4];
    acc[0] = _mm256_add_epi64(_mm256_add_epi64(acc[0], acc[1]), _mm256_add_epi64(acc[2], acc[3]));
    _mm256_storeu_si256((void *)words, acc[0]);
    return words[0] + words[1] + words[2] + words[3];
}

#include "batch256.h"
