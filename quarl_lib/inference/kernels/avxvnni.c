/* The products with AVX-VNNI (256-bit vpdpbusd, no saturation): desktop CPUs since 2021. */
#include "kernels.h"

#if defined(__x86_64__) && (__GNUC__ >= 11 || (defined(__clang__) && __clang_major__ >= 12))
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avxvnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avxvnni,avx2,fma,f16c")
#endif
#include <immintrin.h>

#define DOT_WEIGHTS(acc, a, w) _mm256_dpbusd_avx_epi32(acc, a, w)
#define DOT_LEVELS2(acc, t, a, u, b) _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(acc, t, a), u, b)
/* vpdpwssd took 1.7 times as long as these two on Zen 5. */
#define DOT_WORDS(acc, a, b) _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
#define COLUMN_SHIFT 0
#define COLUMN_RUN MAX_COLUMNS
#define ADD_COLUMNS(acc, codes, low01, high01, low23, high23)                                                   \
    do {                                                                                                        \
        __m256i a4 = four_bytes(codes);                                                                          \
        acc[0] = _mm256_dpbusd_avx_epi32(acc[0], a4, _mm256_unpacklo_epi16(low01, low23));                       \
        acc[1] = _mm256_dpbusd_avx_epi32(acc[1], a4, _mm256_unpackhi_epi16(low01, low23));                       \
        acc[2] = _mm256_dpbusd_avx_epi32(acc[2], a4, _mm256_unpacklo_epi16(high01, high23));                     \
        acc[3] = _mm256_dpbusd_avx_epi32(acc[3], a4, _mm256_unpackhi_epi16(high01, high23));                     \
    } while (0)
#define BYTE_PRODUCTS
#define DOT_BYTES(acc, a, w) _mm256_dpbusd_avx_epi32(acc, a, w)
#define DOT_LEVEL(acc, t, a) _mm256_dpbusd_avx_epi32(acc, t, a)
#include "simd256.h"

static const kernels table = KERNELS("avxvnni", 0, read_lines);
const kernels *const avxvnni_kernels = &table;
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
const kernels *const avxvnni_kernels = NULL;
#endif
