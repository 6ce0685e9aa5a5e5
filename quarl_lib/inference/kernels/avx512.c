/* The products with AVX-512 VNNI: vpdpbusd multiplies unsigned by signed bytes and adds four products without saturation. */
#include "kernels.h"

#if defined(__x86_64__) && (__GNUC__ >= 8 || defined(__clang__))
#ifdef __clang__
#pragma clang attribute push(                                                                                  \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512")
#endif
#include <immintrin.h>

#define HAS_LISTS
#define BYTE_PRODUCTS
#define LEVEL_PRODUCTS
#define INTERLEAVE
#include "float_rows.h"

#define AHEAD 2048 /* bytes: far enough for DRAM, near enough to stay in the first-level cache */
#define PREFETCH(p) _mm_prefetch((const char *)(p) + AHEAD, _MM_HINT_T0)
#define LOAD(p) _mm512_loadu_si512((const void *)(p))
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL16 _Pragma("GCC unroll 16")

/* Sixteen at a time: squeeze the wanted ones together, store all, step by their number. Lists have room for it. */
static ptrdiff_t list_codes(const uint8_t *codes, ptrdiff_t n, uint16_t *columns, uint8_t *values) {
    __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n; i += 16, number = _mm512_add_epi32(number, _mm512_set1_epi32(16))) {
        __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(codes + i)));
        __mmask16 wanted = _mm512_test_epi32_mask(wide, wide);
        if (n - i < 16) wanted &= (__mmask16)((1 << (n - i)) - 1);
        _mm256_storeu_si256((void *)(columns + count), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(wanted, number)));
        _mm_storeu_si128((void *)(values + count), _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(wanted, wide)));
        count += __builtin_popcount(wanted);
    }
    FILL_UP(count, columns, values);
    return count;
}

static ptrdiff_t list_floats(const float *x, ptrdiff_t n, uint16_t *columns, float *values) {
    __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ptrdiff_t count = 0;
    for (ptrdiff_t i = 0; i < n; i += 16, number = _mm512_add_epi32(number, _mm512_set1_epi32(16))) {
        __m512 v = _mm512_loadu_ps(x + i);
        __mmask16 wanted = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        if (n - i < 16) wanted &= (__mmask16)((1 << (n - i)) - 1);
        _mm256_storeu_si256((void *)(columns + count), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(wanted, number)));
        _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(wanted, v));
        count += __builtin_popcount(wanted);
    }
    FILL_UP(count, columns, values);
    return count;
}

INLINE __m512i four_bytes(const uint8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return _mm512_set1_epi32(word);
}

/* A few steps at once give the 8 or so independent sums that hide the latency of the products. */
#define BY_BLOCKS(product)                                                                                      \
    switch (blocks) {                                                                                           \
    case 4: product(weights, codes, steps, sums, 4, 2); break;                                                   \
    case 3: product(weights, codes, steps, sums, 3, 2); break;                                                   \
    case 2: product(weights, codes, steps, sums, 2, 4); break;                                                   \
    default: product(weights, codes, steps, sums, 1, 4);                                                         \
    }

INLINE void w8a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int blocks,
                    const int unroll) {
    __m512i acc[8];
    UNROLL for (int i = 0; i < blocks * unroll; i++) acc[i] = _mm512_setzero_si512();
    for (ptrdiff_t s = 0; s < steps; s += unroll, codes += 4 * unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            __m512i a = four_bytes(codes + 4 * u);
            UNROLL for (int b = 0; b < blocks; b++, w += 64) {
                PREFETCH(w);
                acc[u * blocks + b] = _mm512_dpbusd_epi32(acc[u * blocks + b], a, LOAD(w));
            }
        }
    UNROLL for (int b = 0; b < blocks; b++) {
        for (int u = 1; u < unroll; u++) acc[b] = _mm512_add_epi32(acc[b], acc[u * blocks + b]);
        _mm512_storeu_si512(sums + b * BLOCK, acc[b]);
    }
}

static void w8a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w8a8_of)
}

INLINE void w8a16_of(const uint8_t *w, const int16_t *codes, ptrdiff_t steps, int32_t *sums, const int blocks,
                     const int unroll) {
    __m512i acc[16]; /* each holds 8 rows, two partial sums a row */
    UNROLL for (int i = 0; i < 2 * blocks * unroll; i++) acc[i] = _mm512_setzero_si512();
    for (ptrdiff_t s = 0; s < steps; s += unroll, codes += 4 * unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            long long four;
            memcpy(&four, codes + 4 * u, 8);
            __m512i a = _mm512_set1_epi64(four);
            UNROLL for (int h = 0; h < 2 * blocks; h++, w += 32) {
                if (h % 2 == 0) PREFETCH(w);
                __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)w));
                acc[u * 2 * blocks + h] = _mm512_dpwssd_epi32(acc[u * 2 * blocks + h], a, wide);
            }
        }
    UNROLL for (int h = 0; h < 2 * blocks; h++) {
        for (int u = 1; u < unroll; u++) acc[h] = _mm512_add_epi32(acc[h], acc[u * 2 * blocks + h]);
        __m512i both = _mm512_add_epi32(acc[h], _mm512_srli_epi64(acc[h], 32));
        _mm256_storeu_si256((void *)(sums + h * 8), _mm512_cvtepi64_epi32(both));
    }
}

static void w8a16(const uint8_t *weights, const int16_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w8a16_of)
}

/* The high nibble stays where it is, 16 times its value; its sum is shifted once at the end. */
INLINE void w4a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int blocks,
                    const int unroll) {
    const __m512i low = _mm512_set1_epi8(0x0f), high = _mm512_set1_epi8((char)0xf0);
    __m512i acc[16];
    UNROLL for (int i = 0; i < 2 * blocks * unroll; i++) acc[i] = _mm512_setzero_si512();
    for (ptrdiff_t s = 0; s < steps; s += unroll, codes += 8 * unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            __m512i a = four_bytes(codes + 8 * u), b4 = four_bytes(codes + 8 * u + 4);
            UNROLL for (int b = 0; b < blocks; b++, w += 64) {
                __m512i *sum = acc + 2 * (u * blocks + b), t = LOAD(w);
                PREFETCH(w);
                sum[0] = _mm512_dpbusd_epi32(sum[0], _mm512_and_si512(t, low), a);
                sum[1] = _mm512_dpbusd_epi32(sum[1], _mm512_and_si512(t, high), b4);
            }
        }
    UNROLL for (int b = 0; b < blocks; b++) {
        for (int u = 1; u < unroll; u++)
            for (int i = 0; i < 2; i++)
                acc[2 * b + i] = _mm512_add_epi32(acc[2 * b + i], acc[2 * (u * blocks + b) + i]);
        __m512i total = _mm512_add_epi32(acc[2 * b], _mm512_srai_epi32(acc[2 * b + 1], 4));
        _mm512_storeu_si512(sums + b * BLOCK, total);
    }
}

static void w4a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w4a8_of)
}

/* Runs stay where they lie, 1, 8 or 32 times their value; two take their lowest bit from the last word. */
INLINE void w3a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int blocks,
                    const int unroll) {
    (void)unroll;
    const __m512i low = _mm512_set1_epi8(7), middle = _mm512_set1_epi8(56), top = _mm512_set1_epi8((char)0xc0);
    const __m512i high = _mm512_set1_epi8((char)0xe0);
    __m512i acc[12];
    UNROLL16 for (int i = 0; i < 3 * blocks; i++) acc[i] = _mm512_setzero_si512();
    for (ptrdiff_t s = 0; s < steps; s++, codes += 32, w += 3 * 64 * blocks) {
        UNROLL for (int b = 0; b < blocks; b++) {
            __m512i *sum = acc + 3 * b, t[3];
            UNROLL for (int i = 0; i < 3; i++) {
                const uint8_t *word = w + 64 * (i * blocks + b);
                PREFETCH(word), t[i] = LOAD(word);
                sum[0] = _mm512_dpbusd_epi32(sum[0], _mm512_and_si512(t[i], low), four_bytes(codes + 8 * i));
                sum[1] = _mm512_dpbusd_epi32(sum[1], _mm512_and_si512(t[i], middle), four_bytes(codes + 8 * i + 4));
            }
            UNROLL for (int i = 0; i < 2; i++) { /* 0xca: bits of the second where the first has ones, else of the third */
                __m512i last = i ? _mm512_srli_epi32(t[2], 2) : _mm512_srli_epi32(t[2], 1);
                __m512i both = _mm512_and_si512(_mm512_ternarylogic_epi32(top, t[i], last, 0xca), high);
                sum[2] = _mm512_dpbusd_epi32(sum[2], both, four_bytes(codes + 24 + 4 * i));
            }
        }
    }
    UNROLL for (int b = 0; b < blocks; b++) {
        __m512i total = _mm512_add_epi32(acc[3 * b], _mm512_srai_epi32(acc[3 * b + 1], 3));
        _mm512_storeu_si512(sums + b * BLOCK, _mm512_add_epi32(total, _mm512_srai_epi32(acc[3 * b + 2], 5)));
    }
}

static void w3a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w3a8_of)
}

INLINE void w2a8_of(const uint8_t *w, const uint8_t *codes, ptrdiff_t steps, int32_t *sums, const int blocks,
                    const int unroll) {
    (void)unroll;
    __m512i acc[16], mask[4];
    UNROLL for (int i = 0; i < 4; i++) mask[i] = _mm512_set1_epi8((char)(3 << 2 * i));
    UNROLL for (int i = 0; i < 4 * blocks; i++) acc[i] = _mm512_setzero_si512();
    for (ptrdiff_t s = 0; s < steps; s++, codes += 16) {
        __m512i a[4];
        UNROLL for (int i = 0; i < 4; i++) a[i] = four_bytes(codes + 4 * i);
        UNROLL for (int b = 0; b < blocks; b++, w += 64) {
            __m512i t = LOAD(w);
            PREFETCH(w);
            UNROLL for (int i = 0; i < 4; i++)
                acc[4 * b + i] = _mm512_dpbusd_epi32(acc[4 * b + i], _mm512_and_si512(t, mask[i]), a[i]);
        }
    }
    UNROLL for (int b = 0; b < blocks; b++) {
        __m512i total = acc[4 * b];
        for (int i = 1; i < 4; i++) total = _mm512_add_epi32(total, _mm512_srai_epi32(acc[4 * b + i], 2 * i));
        _mm512_storeu_si512(sums + b * BLOCK, total);
    }
}

static void w2a8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums) {
    BY_BLOCKS(w2a8_of)
}

/* Four listed columns at a time, interleaved into bytes of the same row. Unpacking works inside 16-byte lanes: sum `i`
 * has rows 4 i to 4 i + 3 of each 16, put in order at the end. */
INLINE void w8u8_of(const uint8_t *weights, const uint8_t *next, ptrdiff_t rows, const uint16_t *columns,
                    const uint8_t *codes, ptrdiff_t count, int32_t *sums, const int chunks) {
    __m512i acc[16];
    UNROLL16 for (int i = 0; i < 4 * chunks; i++) acc[i] = _mm512_setzero_si512();
    for (ptrdiff_t s = 0; s < count; s += 4) {
        __m512i a = four_bytes(codes + s);
        const uint8_t *w[4];
        UNROLL for (int i = 0; i < 4; i++) w[i] = weights + columns[s + i] * rows;
        if (chunks == 4) prefetch_columns(weights, next, columns, s, count, TALL_PANEL, 4);
        UNROLL for (int c = 0; c < chunks; c++) {
            __m512i c0 = LOAD(w[0] + 64 * c), c1 = LOAD(w[1] + 64 * c), c2 = LOAD(w[2] + 64 * c), c3 = LOAD(w[3] + 64 * c);
            __m512i low01 = _mm512_unpacklo_epi8(c0, c1), high01 = _mm512_unpackhi_epi8(c0, c1);
            __m512i low23 = _mm512_unpacklo_epi8(c2, c3), high23 = _mm512_unpackhi_epi8(c2, c3), *sum = acc + 4 * c;
            sum[0] = _mm512_dpbusd_epi32(sum[0], a, _mm512_unpacklo_epi16(low01, low23));
            sum[1] = _mm512_dpbusd_epi32(sum[1], a, _mm512_unpackhi_epi16(low01, low23));
            sum[2] = _mm512_dpbusd_epi32(sum[2], a, _mm512_unpacklo_epi16(high01, high23));
            sum[3] = _mm512_dpbusd_epi32(sum[3], a, _mm512_unpackhi_epi16(high01, high23));
        }
    }
    UNROLL for (int c = 0; c < chunks; c++, sums += 64) {
        __m512i *sum = acc + 4 * c, low01 = _mm512_shuffle_i32x4(sum[0], sum[1], 0x44);
        __m512i low23 = _mm512_shuffle_i32x4(sum[2], sum[3], 0x44), high01 = _mm512_shuffle_i32x4(sum[0], sum[1], 0xee);
        __m512i high23 = _mm512_shuffle_i32x4(sum[2], sum[3], 0xee);
        _mm512_storeu_si512(sums, _mm512_shuffle_i32x4(low01, low23, 0x88));
        _mm512_storeu_si512(sums + 16, _mm512_shuffle_i32x4(low01, low23, 0xdd));
        _mm512_storeu_si512(sums + 32, _mm512_shuffle_i32x4(high01, high23, 0x88));
        _mm512_storeu_si512(sums + 48, _mm512_shuffle_i32x4(high01, high23, 0xdd));
    }
}

static void w8u8(const uint8_t *weights, const uint8_t *next, const uint16_t *columns, const uint8_t *codes,
                 ptrdiff_t count, int blocks, int32_t *sums) {
    ptrdiff_t rows = blocks * BLOCK;
    if (rows == TALL_PANEL)
        w8u8_of(weights, next, rows, columns, codes, count, sums, 4);
    else
        for (ptrdiff_t first = 0; first < rows; first += 64)
            w8u8_of(weights + first, next, rows, columns, codes, count, sums + first, 1);
}

INLINE void float_of(const uint8_t *w, const uint8_t *next, const uint16_t *columns, const float *x, ptrdiff_t count,
                     float *sums, const int blocks, const int unroll, const int bytes) {
    __m512 acc[8];
    UNROLL for (int i = 0; i < blocks * unroll; i++) acc[i] = _mm512_setzero_ps();
    for (ptrdiff_t s = 0; s < count; s += unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            const uint8_t *column = w + (ptrdiff_t)columns[s + u] * (blocks * BLOCK * bytes);
            prefetch_columns(w, next, columns, s + u, count, blocks * BLOCK * bytes, 1);
            __m512 factor = _mm512_set1_ps(x[s + u]);
            UNROLL for (int b = 0; b < blocks; b++) {
                const void *p = column + b * BLOCK * bytes;
                __m512 v = bytes == 2 ? _mm512_cvtph_ps(_mm256_loadu_si256(p)) : _mm512_loadu_ps(p);
                acc[u * blocks + b] = _mm512_fmadd_ps(v, factor, acc[u * blocks + b]);
            }
        }
    UNROLL for (int b = 0; b < blocks; b++) {
        for (int u = 1; u < unroll; u++) acc[b] = _mm512_add_ps(acc[b], acc[u * blocks + b]);
        _mm512_storeu_ps(sums + b * BLOCK, acc[b]);
    }
}

#define FLOAT_VECTORS 1
#define FLOAT_UNROLL_1 4
#define FLOAT_UNROLL_2 4
#define FLOAT_UNROLL_3 2
#define FLOAT_UNROLL_4 2
#include "float_blocks.h"

static uint64_t read_lines(const uint8_t *data, ptrdiff_t lines) {
    __m512i acc[4];
    for (int i = 0; i < 4; i++) acc[i] = _mm512_setzero_si512();
    for (ptrdiff_t i = 0; i + 4 <= lines; i += 4, data += 256)
        UNROLL for (int j = 0; j < 4; j++) {
            PREFETCH(data + 64 * j);
            acc[j] = _mm512_add_epi64(acc[j], LOAD(data + 64 * j));
        }
    return (uint64_t)_mm512_reduce_add_epi64(
        _mm512_add_epi64(_mm512_add_epi64(acc[0], acc[1]), _mm512_add_epi64(acc[2], acc[3])));
}

#include "batch512.h"

static const kernels table = KERNELS("avx512", 0, read_lines);
const kernels *const avx512_kernels = &table;
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
const kernels *const avx512_kernels = NULL;
#endif
