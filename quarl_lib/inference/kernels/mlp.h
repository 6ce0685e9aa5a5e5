/* A whole policy over packed weights: plain C, no Python, no allocation while it acts. */
#ifndef QUARL_MLP_H
#define QUARL_MLP_H

#include "kernels.h"

enum head { HEAD_NONE, HEAD_TANH, HEAD_CLIP, HEAD_ARGMAX, HEAD_CATEGORICAL, HEAD_GAUSSIAN }; /* order of spec.HEADS */
#define LAYOUT_VERSION 5 /* of packed buffers, as in layout.py, which refuses kernels of another */
enum { MAX_LAYERS = 64, MAX_BATCH = 128, ZERO_POINT = 128 /* of w8a8 bytes */, LIST_ROOM = 16 };

typedef struct {
    enum kind kind;
    enum activation activation;
    ptrdiff_t rows, cols, rows_padded, cols_padded;
    int limit;      /* largest activation code */
    int sparse;     /* inputs come from a ReLU: those that are zero are left out where the layout allows it */
    int layer_norm;
    double eps;
    ptrdiff_t weights, scales, row_sums, residuals, bias, norm_scale, norm_offset, input_step; /* offsets; 0 for none */
} layer;

typedef struct {
    const kernels *kernels;
    int num_layers;
    layer layers[MAX_LAYERS];
    enum head head;
    ptrdiff_t mean, inverse_std, log_std; /* offsets; 0 for none */
    float clip;
    float *low, *high, *middle, *half_width; /* NULL where the head has no bounds */
    uint64_t random_state;

    const uint8_t *data; /* the packed buffer */
    ptrdiff_t width;     /* of a row of scratch, in elements */
    int batch;           /* rows of scratch */
    float *x, *y;
    void *codes; /* bytes or int16 */
    uint16_t *columns; /* of a w8u8, fp32 or fp16 layer: the listed columns, their values (bytes or floats) */
    float *values;
    uint8_t *panel; /* a slab of unpacked weights, and the sums [sub-panel][observation][64] of a panel */
    int32_t *sums;
    ptrdiff_t count[MAX_BATCH];
    uint32_t absmax[MAX_BATCH]; /* of the rows of x as bits, where the layer before has them */
    int absmax_known;
    int32_t group_sums[MAX_COLUMNS / GROUP];
    int32_t code_sum[MAX_BATCH];
    float activation_scale[MAX_BATCH];
} mlp;

/* Where a run stopped: the layer whose input (-1: its last output) is not finite, and the element. */
typedef struct {
    int layer;
    ptrdiff_t row, index;
    float value;
} bad_value;

int mlp_reserve(mlp *m, int batch); /* grow scratch to `batch` rows; 0 if memory ran out */
void mlp_free(mlp *m);
/* Put an observation, normalised where the policy does, into row `i` of m->x; doubles (`wide`) only where it does. */
int mlp_observe(mlp *m, int i, const void *observation, int wide, bad_value *bad);
/* Run the `n` <= m->batch rows in m->x; outputs are in m->y. Return 0 and fill `bad` on a bad value, as above. */
int mlp_forward(mlp *m, int n, bad_value *bad);
/* Run an integer layer for a batch; the same bits as mlp_layer. */
int mlp_batch_layer(mlp *m, int index, int n, bad_value *bad);
int mlp_not_finite(const float *x, ptrdiff_t n, bad_value *bad, int layer_index, int row);
/* The factor from values to codes and the scale back, from the largest value's bits. */
float mlp_activation_scale(uint32_t absmax_bits, int limit, float *scale);
/* The factor from row `i`'s values to codes, and into m->activation_scale the one back: the layer's static step, beyond
 * whose last code values are clipped, or what the row's largest value gives. */
float mlp_input_factor(mlp *m, const layer *l, int i, uint32_t absmax_bits);
/* Run one layer from m->x to m->y (m->codes and, if not NULL, `sums` [groups, rows_padded] are left to look at). */
int mlp_layer(mlp *m, int index, int n, int32_t *sums, bad_value *bad);
/* Normalise the `n` rows of m->y where the layer does, and apply its activation. */
void mlp_activate(mlp *m, const layer *l, int n);
/* Turn the outputs of row `i` into an action: floats into `action`, or the index returned. */
ptrdiff_t mlp_action(mlp *m, int i, float *action);
static inline float *row_of(const mlp *m, float *scratch, int i) { return scratch + (ptrdiff_t)i * m->width; }

#endif
