/* What `python -m exercises time 6.5` compiles an answer with: a fast `one_panel`, and threads that call `work_on`. */
#include <pthread.h>

#define pack pack_columns /* linear.h declares another one */
#include "kernel/linear.c"
#undef pack
#include "linear.h"

#define MAX_THREADS 64

static struct {
    Layer layer;
    Counter counters[MAX_THREADS];
    int64_t threads;
} now;

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

static void *work(void *rank) { return work_on(&now.layer, now.counters, (int64_t)(intptr_t)rank, now.threads), NULL; }

void shared(const float *x, const float *panels, const float *bias, float *y, int64_t n, int64_t in, int64_t out,
            int64_t threads) {
    pthread_t started[MAX_THREADS];
    now.layer = (Layer){x, panels, bias, y, n, in, out}, now.threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    for (int64_t v = 0; v < now.threads; v++) now.counters[v].taken = 0;
    for (int64_t v = 1; v < now.threads; v++) pthread_create(&started[v], NULL, work, (void *)(intptr_t)v);
    work(NULL); /* rank 0 */
    for (int64_t v = 1; v < now.threads; v++) pthread_join(started[v], NULL);
}
