/* What `python -m exercises time 6.5` links an answer with: a fast `one_panel`, and threads that call `work_on`. */
#include "solutions/6_3_rows_share_a_panel.c"

#ifdef _OPENMP /* omp.h is not where every compiler looks */
int omp_get_thread_num(void);
int omp_get_num_threads(void);
#endif
#define MAX_THREADS 64

void one_panel(const Layer *layer, int64_t panel) {
    const int64_t in = layer->in, out = layer->out, first = panel * PANEL;
    for (int64_t t = 0; t < layer->n; t += GROUP) {
        float sums[GROUP][PANEL];
        const int64_t count = layer->n - t < GROUP ? layer->n - t : GROUP;
        group_of(layer->x + t * in, layer->panels + first * in, in, sums, count);
        for (int64_t k = 0; k < count; k++)
            for (int c = 0; c < PANEL && first + c < out; c++)
                layer->y[(t + k) * out + first + c] += sums[k][c] + layer->bias[first + c];
    }
}

void shared(const float *x, const float *panels, const float *bias, float *y, int64_t n, int64_t in, int64_t out,
            int64_t threads) {
    const Layer layer = {x, panels, bias, y, n, in, out};
    Counter counters[MAX_THREADS] = {{0}};
#ifdef _OPENMP
    _Pragma("omp parallel num_threads(threads < MAX_THREADS ? (int)threads : MAX_THREADS)")
        work_on(&layer, counters, omp_get_thread_num(), omp_get_num_threads());
#else
    (void)threads;
    work_on(&layer, counters, 0, 1);
#endif
}
