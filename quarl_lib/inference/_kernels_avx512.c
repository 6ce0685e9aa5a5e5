/* The products with AVX-512 VNNI: vpdpbusd multiplies unsigned by signed bytes and adds four products without saturation. */
#include "_kernels.h"

#if defined(__x86_64__) && (__GNUC__ >= 8 || defined(__clang__))
#ifdef __clang__
#pragma clang attribute push(                                                                                  \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512")
#endif
#include <immintrin.h>

#include "_kernels_float.h"

#define AHEAD 2048 /* bytes: far enough for DRAM, near enough to stay in the first-level cache */
#define PREFETCH(p) _mm_prefetch((const char *)(p) + AHEAD, _MM_HINT_T0)
#define LOAD(p) _mm512_loadu_si512((const void *)(p))
#define UNROLL _Pragma("GCC unroll 8")

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

INLINE void float_of(const uint8_t *w, const float *codes, ptrdiff_t steps, float *sums, const int blocks,
                     const int unroll, const int half) {
    __m512 acc[8];
    UNROLL for (int i = 0; i < blocks * unroll; i++) acc[i] = _mm512_setzero_ps();
    for (ptrdiff_t s = 0; s < steps; s += unroll, codes += unroll)
        UNROLL for (int u = 0; u < unroll; u++) {
            __m512 x = _mm512_set1_ps(codes[u]);
            UNROLL for (int b = 0; b < blocks; b++, w += half ? 32 : 64) {
                if (!half || b % 2 == 0) PREFETCH(w);
                __m512 v = half ? _mm512_cvtph_ps(_mm256_loadu_si256((const void *)w)) : _mm512_loadu_ps((const void *)w);
                acc[u * blocks + b] = _mm512_fmadd_ps(v, x, acc[u * blocks + b]);
            }
        }
    UNROLL for (int b = 0; b < blocks; b++) {
        for (int u = 1; u < unroll; u++) acc[b] = _mm512_add_ps(acc[b], acc[u * blocks + b]);
        _mm512_storeu_ps(sums + b * BLOCK, acc[b]);
    }
}

#define FP32_OF(w, x, n, y, blocks, unroll) float_of(w, x, n, y, blocks, unroll, 0)
#define FP16_OF(w, x, n, y, blocks, unroll) float_of(w, x, n, y, blocks, unroll, 1)

static void fp32(const uint8_t *weights, const float *codes, ptrdiff_t steps, int blocks, float *sums) {
    BY_BLOCKS(FP32_OF)
}

static void fp16(const uint8_t *weights, const float *codes, ptrdiff_t steps, int blocks, float *sums) {
    BY_BLOCKS(FP16_OF)
}

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

static const kernels table = KERNELS("avx512", 0, read_lines);
const kernels *const avx512_kernels = &table;
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
const kernels *const avx512_kernels = NULL;
#endif
