/* The products with AVX2. vpmaddubsw adds two products into 16 bits and saturates beyond: both products are kept so small
 * that it cannot. Weights are -127..127 and signed activations -128..127 go as (|a|, sign(a) w): 2 * 128 * 127 = 32512. */
#include "_kernels.h"

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
#include "_kernels_256.h"

static const kernels table = KERNELS("avx2", -128, read_lines);
const kernels *const avx2_kernels = &table;
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
const kernels *const avx2_kernels = NULL;
#endif
