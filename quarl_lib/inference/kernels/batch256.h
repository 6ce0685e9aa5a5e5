/* Batches over 256-bit vectors: 6 observations by 16 rows are 12 of the 16 registers. */

#define VECTOR __m256i
#define V_LANES 8
#define V_ZERO _mm256_setzero_si256()
#define V_LOAD(p) LOAD(p)
#define V_STORE(p, v) _mm256_storeu_si256((void *)(p), v)
#define V_ADD _mm256_add_epi32
#define V_FOUR(p) four_bytes(p)
#define V_ALL(word) _mm256_set1_epi32(word)
#define V_AND _mm256_and_si256
#define V_OR _mm256_or_si256
#define V_RIGHT _mm256_srli_epi32
#define F_VECTOR __m256
#define F_ZERO _mm256_setzero_ps()
#define F_PRODUCT(acc, a, w) _mm256_fmadd_ps(a, w, acc)
#define TILE_VECTORS 2

#ifdef BYTE_PRODUCTS
/* Unpacking works inside 16-byte lanes, so each vector's halves go to different rows. */
static void interleave_columns(const uint8_t *weights, ptrdiff_t stride, int rows, ptrdiff_t cols, uint8_t *panel) {
    for (ptrdiff_t c = 0; c < cols; c += 4, weights += 4 * stride)
        for (int r = 0; r < rows; r += BLOCK, panel += 64) {
            __m128i column[4];
            UNROLL for (int i = 0; i < 4; i++) column[i] = _mm_loadu_si128((const void *)(weights + i * stride + r));
            __m256i low = _mm256_set_m128i(_mm_unpackhi_epi8(column[0], column[1]), _mm_unpacklo_epi8(column[0], column[1]));
            __m256i high = _mm256_set_m128i(_mm_unpackhi_epi8(column[2], column[3]), _mm_unpacklo_epi8(column[2], column[3]));
            __m256i even = _mm256_unpacklo_epi16(low, high), odd = _mm256_unpackhi_epi16(low, high);
            V_STORE(panel, _mm256_permute2x128_si256(even, odd, 0x20));
            V_STORE(panel + 32, _mm256_permute2x128_si256(even, odd, 0x31));
        }
}
#endif

#include "batch_tiles.h"
#include "batch_rows.h"
