/* The products with AVX2. vpmaddubsw adds two products into 16 bits and saturates beyond: both products are kept so small
 * that it cannot. Weights are -127..127 and signed activations -128..127 go as (|a|, sign(a) w): 2 * 128 * 127 = 32512. */
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include <immintrin.h>

#define ADD_PAIRS(acc, pairs) _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
#define DOT_WEIGHTS(acc, a, w) ADD_PAIRS(acc, _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(w, a)))
/* 4 * 15 * 128 = 7680 */
#define DOT_LEVELS2(acc, t, a, u, b)                                                                            \
    ADD_PAIRS(acc, _mm256_add_epi16(_mm256_maddubs_epi16(t, a), _mm256_maddubs_epi16(u, b)))
#define DOT_WORDS(acc, a, b) _mm256_add_epi32(acc, _mm256_madd_epi16(a, b))
/* 255 * 127 * 2 would saturate, so bytes become words, above a zero byte: 256 times their value. 256 columns of that,
 * 255 * 127 * 256 * 256 = 2122383360, just fit into 32 bits. */
#define COLUMN_SHIFT 8
#define COLUMN_RUN 256
#define TWO_COLUMNS(acc, pairs, half, a)                                                                        \
    DOT_WORDS(acc, a, _mm256_unpack##half##_epi8(_mm256_setzero_si256(), pairs))
#define ADD_COLUMNS(acc, codes, low01, high01, low23, high23)                                                   \
    do {                                                                                                        \
        __m256i a01 = _mm256_set1_epi32((codes)[0] | (codes)[1] << 16);                                          \
        __m256i a23 = _mm256_set1_epi32((codes)[2] | (codes)[3] << 16);                                          \
        acc[0] = TWO_COLUMNS(TWO_COLUMNS(acc[0], low01, lo, a01), low23, lo, a23);                               \
        acc[1] = TWO_COLUMNS(TWO_COLUMNS(acc[1], low01, hi, a01), low23, hi, a23);                               \
        acc[2] = TWO_COLUMNS(TWO_COLUMNS(acc[2], high01, lo, a01), high23, lo, a23);                             \
        acc[3] = TWO_COLUMNS(TWO_COLUMNS(acc[3], high01, hi, a01), high23, hi, a23);                             \
    } while (0)
/* A batch's levels: 2 * 15 * 128 = 3840 fits into 16 bits */
#define DOT_LEVEL(acc, t, a) ADD_PAIRS(acc, _mm256_maddubs_epi16(t, a))
#include "simd256.h"

static const kernels table = KERNELS("avx2", -128, read_lines);
const kernels *const avx2_kernels = &table;
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
const kernels *const avx2_kernels = NULL;
#endif
