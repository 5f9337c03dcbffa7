/* A solution of exercise 6.5. */
#include "linear.h"

/* A panel that nobody has taken, for thread `rank` of `size`; -1 if there is none. Any threads may call it at once. */
int64_t take(Counter *counters, int64_t rank, int64_t size, int64_t num_panels) {
    for (int64_t further = 0; further < size; further++) {
        const int64_t v = (rank + further) % size;
        const int64_t first = num_panels * v / size, end = num_panels * (v + 1) / size;
        const int64_t panel = first + __atomic_fetch_add(&counters[v].taken, 1, __ATOMIC_RELAXED);
        if (panel < end) return panel;
    }
    return -1;
}

/* What thread `rank` of `size` does for a layer. It returns when no panel is left to take. */
void work_on(const Layer *layer, Counter *counters, int64_t rank, int64_t size) {
    const int64_t num_panels = (layer->out + PANEL - 1) / PANEL;
    for (int64_t panel; (panel = take(counters, rank, size, num_panels)) >= 0;) one_panel(layer, panel);
}
