/* Batches with AVX-512 VNNI: 6 observations by 64 rows are 24 of the 32 registers. */

#define VECTOR __m512i
#define V_LANES 16
#define V_ZERO _mm512_setzero_si512()
#define V_LOAD(p) LOAD(p)
#define V_STORE(p, v) _mm512_storeu_si512((void *)(p), v)
#define V_ADD _mm512_add_epi32
#define V_FOUR(p) four_bytes(p)
#define V_ALL(word) _mm512_set1_epi32(word)
#define V_AND _mm512_and_si512
#define V_OR _mm512_or_si512
#define V_RIGHT _mm512_srli_epi32
#define F_VECTOR __m512
#define F_ZERO _mm512_setzero_ps()
#define F_PRODUCT(acc, a, w) _mm512_fmadd_ps(a, w, acc)
#define TILE_VECTORS 4
#define DOT_BYTES(acc, a, w) _mm512_dpbusd_epi32(acc, a, w)
#define DOT_LEVEL(acc, w, a) _mm512_dpbusd_epi32(acc, w, a)

/* From four rows of every sixteen in a vector to sixteen rows in order; see w8u8_of. */
static void order_rows(int32_t *sums) {
    __m512i s0 = LOAD(sums), s1 = LOAD(sums + 16), s2 = LOAD(sums + 32), s3 = LOAD(sums + 48);
    __m512i low01 = _mm512_shuffle_i32x4(s0, s1, 0x44), low23 = _mm512_shuffle_i32x4(s2, s3, 0x44);
    __m512i high01 = _mm512_shuffle_i32x4(s0, s1, 0xee), high23 = _mm512_shuffle_i32x4(s2, s3, 0xee);
    V_STORE(sums, _mm512_shuffle_i32x4(low01, low23, 0x88));
    V_STORE(sums + 16, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    V_STORE(sums + 32, _mm512_shuffle_i32x4(high01, high23, 0x88));
    V_STORE(sums + 48, _mm512_shuffle_i32x4(high01, high23, 0xdd));
}

/* Always 64 rows, those past the panel's without meaning: the sections behind the weights give room to read. */
static void interleave_columns(const uint8_t *weights, ptrdiff_t stride, int rows, ptrdiff_t cols, uint8_t *panel) {
    (void)rows;
    for (ptrdiff_t c = 0; c < cols; c += 4, weights += 4 * stride, panel += 256) {
        __m512i c0 = LOAD(weights), c1 = LOAD(weights + stride);
        __m512i c2 = LOAD(weights + 2 * stride), c3 = LOAD(weights + 3 * stride);
        __m512i low01 = _mm512_unpacklo_epi8(c0, c1), high01 = _mm512_unpackhi_epi8(c0, c1);
        __m512i low23 = _mm512_unpacklo_epi8(c2, c3), high23 = _mm512_unpackhi_epi8(c2, c3);
        V_STORE(panel, _mm512_unpacklo_epi16(low01, low23));
        V_STORE(panel + 64, _mm512_unpackhi_epi16(low01, low23));
        V_STORE(panel + 128, _mm512_unpacklo_epi16(high01, high23));
        V_STORE(panel + 192, _mm512_unpackhi_epi16(high01, high23));
    }
}

#include "batch_tiles.h"
#include "batch_rows.h"
