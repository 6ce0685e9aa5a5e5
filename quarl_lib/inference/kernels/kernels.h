/* The kernels' interface: one table of functions per instruction set, chosen at run time.
 *
 * All tables compute the same codes, int32 sums and, from those, the same floats bit for bit: the float code is basic
 * IEEE operations in a fixed order (compiled with -ffp-contract=off), so only fp32 and fp16 products depend on the table.
 * layout.py describes the tiles that `weights` points to; `blocks` counts a panel's blocks of 16 rows, 1 to 4 (to 16 of w8u8).
 */
#ifndef QUARL_KERNELS_H
#define QUARL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

enum { MAX_COLUMNS = 65536, PANEL = 64, TALL_PANEL = 256, BLOCK = 16, GROUP = 128 };
enum kind { FP32, FP16, W8A8, W8A16, W4A8, W4G128A8, W2A8, W8U8, W3A8, NUM_KINDS }; /* order of layout.KINDS */
enum activation { IDENTITY, RELU, TANH, ELU, SILU, NUM_ACTIVATIONS };           /* order of spec.ACTIVATIONS */

#define KIND_BITS {32, 16, 8, 8, 4, 4, 2, 8, 3} /* of a weight; in the order of the kinds, as these steps of columns */
#define KIND_STEP {8, 8, 16, 16, 32, GROUP, 64, 16, 32}

/* Different values of a weight where they are levels, 0 upwards, of a quantizer without a zero. */
static inline int levels_of(enum kind kind) { return kind == W2A8 ? 4 : kind == W3A8 ? 8 : 16; }

typedef void product_i8(const uint8_t *weights, const uint8_t *codes, ptrdiff_t steps, int blocks, int32_t *sums);
typedef void product_i16(const uint8_t *weights, const int16_t *codes, ptrdiff_t steps, int blocks, int32_t *sums);
/* Products of listed columns; a count is a multiple of 8, filled up with column 0 times 0. `next` is the next panel. */
typedef void product_u8(const uint8_t *weights, const uint8_t *next, const uint16_t *columns, const uint8_t *codes,
                        ptrdiff_t count, int blocks, int32_t *sums);
typedef void product_f(const uint8_t *weights, const uint8_t *next, const uint16_t *columns, const float *x,
                       ptrdiff_t count, int blocks, float *sums);

/* Batches: a slab of weights is unpacked once into [step][row][4 bytes] and multiplied by a few observations at a time.
 * A step is four columns as bytes or two as 16-bit words; codes lie the same way, so that one broadcast feeds a step.
 *   BYTES     unsigned activations by signed weights
 *   INTERLEAVED  the same, rows in the order in which `unpack` interleaved them until `order_rows`
 *   HALVES    a 16-bit code + 32768 as two observations, its low and its high byte; a third, all ones, sums the weights
 *   LEVELS    signed activations by unsigned weights (0..15, 0..7 or 0..3)
 *   WORDS     both signed, 16 bits */
enum batch_mode { NO_BATCH, BYTES, INTERLEAVED, HALVES, LEVELS, WORDS };
enum { TILE = 6 /* observations in one pass */, CHUNK_STEPS = 128 /* with 64 rows 32 KB: a first-level cache */ };

typedef struct { /* what turns a panel's sums into outputs; the same for every observation */
    const float *scales, *residuals, *bias;
    const int32_t *row_sums; /* NULL, or times `shift` to be taken off the sums */
    int32_t shift;
    int halves;  /* sums of low bytes; those of high bytes lie a panel behind */
    int doubled; /* sums of levels: twice them, less `center` */
    int relu;
} outcome;

typedef struct { /* 16 rows of a panel, as `layout.py` has them: where they begin, and what steps over the panel's others */
    enum kind kind;
    ptrdiff_t rows; /* real ones, up to 16 */
    ptrdiff_t panel_rows, cols_padded;
    uint8_t *tiles;
    float *scales, *residuals;
    int32_t *row_sums;
} strip;

typedef struct {
    const char *name;
    uint8_t modes[NUM_KINDS]; /* enum batch_mode of every kind */
    uint8_t batched_from[NUM_KINDS]; /* observations */
    /* Unpack `cols` columns of 64 rows (16 * blocks); `stride` bytes lie between steps, of w8u8 between columns. */
    void (*unpack)(enum kind kind, const uint8_t *weights, ptrdiff_t stride, int blocks, ptrdiff_t cols, uint8_t *panel);
    /* Multiply `steps` of a panel by the codes of n <= TILE observations, and add to sums [n][64] or write them. Lines
     * from `ahead` on, two a step, are fetched meanwhile (NULL: none). */
    void (*multiply)(enum batch_mode mode, const uint8_t *panel, int blocks, const uint8_t *codes, ptrdiff_t stride,
                     ptrdiff_t steps, int n, int32_t *sums, int add, const uint8_t *ahead);
    void (*order_rows)(int32_t *sums); /* 64 of INTERLEAVED weights */
    /* As quantize16, for HALVES: low bytes, and `stride` behind them high bytes. */
    int32_t (*quantize_halves)(const float *x, ptrdiff_t n, float inverse, ptrdiff_t stride, uint8_t *codes);
    /* The outputs of `rows` rows of an observation; return the largest |y| as bits. */
    uint32_t (*finish)(const outcome *o, const int32_t *sums, ptrdiff_t rows, int32_t center, float code_sum,
                       float activation_scale, float *y);
    /* What a w8a8 kernel adds to each activation byte before it multiplies: -128 where it takes bytes as signed. */
    int byte_offset;
    product_i8 *w8a8;   /* step: 4 columns; sums of code * (byte + byte_offset) */
    product_i16 *w8a16; /* step: 4 columns */
    product_i8 *w4a8;   /* step: 8 columns; sums of level (0..15) * signed byte */
    product_i8 *w3a8;   /* step: 32 columns; sums of level (0..7) * signed byte */
    product_i8 *w2a8;   /* step: 16 columns; sums of level (0..3) * signed byte */
    product_u8 *w8u8;   /* of a tall panel; writes sums in 64s, those past the panel's rows without meaning */
    product_f *fp32;
    product_f *fp16;
    /* List the columns that are not zero and their values; return their number, filled up to a multiple of 8. */
    ptrdiff_t (*list_codes)(const uint8_t *codes, ptrdiff_t n, uint16_t *columns, uint8_t *values);
    ptrdiff_t (*list_floats)(const float *x, ptrdiff_t n, uint16_t *columns, float *values);

    /* Largest |x| as bits: above 0x7f7fffff where x holds a NaN or an infinity. */
    uint32_t (*absmax_bits)(const float *x, ptrdiff_t n);
    /* Round x * inverse half to even, add `offset`, store; return the sum of the codes without the offset. */
    int32_t (*quantize8)(const float *x, ptrdiff_t n, float inverse, int offset, uint8_t *codes);
    int32_t (*quantize16)(const float *x, ptrdiff_t n, float inverse, int16_t *codes);
    /* y = ((float)sums * scales + code_sum * residuals) * activation_scale + bias */
    void (*scale_sums)(const int32_t *sums, const float *scales, const float *residuals, const float *bias,
                       float code_sum, float activation_scale, ptrdiff_t n, float *y);
    /* total += (float)sums * scales, for one group of columns */
    void (*add_group)(const int32_t *sums, const float *scales, ptrdiff_t n, float *total);
    /* y = (total + code_sum * residuals) * activation_scale + bias */
    void (*scale_total)(const float *total, const float *residuals, const float *bias, float code_sum,
                        float activation_scale, ptrdiff_t n, float *y);
    void (*layer_norm)(float *y, ptrdiff_t n, const float *scale, const float *offset, double eps);
    void (*activate)(float *y, ptrdiff_t n, enum activation activation);
    /* x = clip((x - mean) * inverse_std), in double up to the clip */
    void (*normalize)(float *x, ptrdiff_t n, const double *mean, const double *inverse_std, float clip);

    /* Quantize `rows` rows of one panel (row-major floats) into tiles; scratch holds 17 rows of codes. Learned
     * `steps` of the rows, or NULL: then their largest weights give them.
     * Return the flat index of the first weight that is not finite (or too large for float16), -1 if there is none. */
    ptrdiff_t (*encode_panel)(enum kind kind, const float *weight, ptrdiff_t rows, ptrdiff_t cols, int blocks,
                              ptrdiff_t cols_padded, uint8_t *tiles, float *scales, int32_t *row_sums,
                              float *residuals, uint8_t *scratch, const float *steps);
    /* Sixteen rows to scaled floats, `stride` from column to column; floats [column][16] to sixteen rows, which uses
     * them up: 0 where one does not fit. */
    void (*decode_strip)(const strip *from, ptrdiff_t cols, float *to, ptrdiff_t stride);
    int (*encode_strip)(const strip *to, ptrdiff_t cols, float *floats);
    /* In place: x = scale * (x * inverse rounded half to even). */
    void (*round_input)(float *x, ptrdiff_t n, float inverse, float scale);
    /* A row of weights as an engine's codes, scale and residual stand for; scratch holds n + 32 bytes, 0 levels: w8. */
    void (*round_weights)(const float *row, ptrdiff_t n, int levels, uint8_t *scratch, float *to);
    void (*checksum)(const uint8_t *data, ptrdiff_t lines, uint64_t sums[16]);
    /* Multiply and add integers, or floats, for a while; return how many products that were. NULL without vectors. */
    ptrdiff_t (*peak[2])(ptrdiff_t repeats);
    /* Sum all 64-byte lines of a buffer: a read at the core's full width, for the bandwidth that bounds an action. */
    uint64_t (*read)(const uint8_t *data, ptrdiff_t lines);
} kernels;

extern const kernels portable_kernels;
extern const kernels *const avx2_kernels, *const avxvnni_kernels, *const avx512_kernels; /* NULL where not compiled */

/* Return the best table for this CPU, or the named one; NULL and a reason where the CPU lacks it. */
const kernels *find_kernels(const char *name, const char **reason);

#endif
