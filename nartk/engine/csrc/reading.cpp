// What is read of a pass: the best words, log-probabilities, margins and draws.
#include "engine.h"

#include <algorithm>
#include <cmath>

namespace nartk {

static constexpr int READ = 32;  // tokens whose logits are there at once

void Engine::logits(const Linear& head, const float* hidden, int count, float* to) {
    const Rounding rounding;
    Lease lease(*this);
    const int d = head.inputs, wide = head.width();
    for (int begin = 0; begin < count; begin += READ) {
        const int n = std::min(READ, count - begin);
        float* rows = lease.space->logits.get((size_t)n * wide);
        linear(*lease.space, head, hidden + (size_t)begin * d, n, d, rows, wide);
        for (int i = 0; i < n; i++)
            std::copy_n(rows + (size_t)i * wide, head.outputs, to + (size_t)(begin + i) * head.outputs);
    }
}

void Engine::read(Workspace& space, const Want& want, Read& found) {
    const Linear& head = *found.head;
    const int n = (int)want.only.size(), d = head.inputs, wide = head.width(), words = head.outputs;
    found.best.resize(n);
    found.log_probs.resize(n);
    if (want.top) {
        found.top.assign((size_t)n * want.top, -1);
        found.top_log_probs.assign((size_t)n * want.top, -INFINITY);
    }
    if (want.margin) found.margins.resize(n);
    if (want.given) found.given_log_probs.assign(n, 0.0f);
    if (want.draw.uniforms) {
        found.drawn.resize(n);
        found.drawn_log_probs.resize(n);
    }
    for (int begin = 0; begin < n; begin += READ) {
        if (interrupted) interrupted();
        const int m = std::min(READ, n - begin);
        float* rows = space.logits.get((size_t)m * wide);
        linear(space, head, found.hidden.data() + (size_t)begin * d, m, d, rows, wide);
        threads.share(m, threads.parts(m, (double)m * words * 8 / PART), [&](int, int first, int last) {
            std::vector<float> copy;
            for (int i = first; i < last; i++) read_row(rows + (size_t)i * wide, begin + i, want, found, copy);
        });
    }
}

namespace {

// The best `count` words of a row, of equal ones the lowest ids first; forbidden ones are NaN.
void best_words(const float* row, int words, int count, int* to) {
    int held = 0;
    for (int v = 0; v < words; v++) {
        const float x = row[v];
        if (std::isnan(x) || (held == count && !(x > row[to[held - 1]]))) continue;
        int at = held < count ? held++ : count - 1;
        for (; at > 0 && row[to[at - 1]] < x; at--) to[at] = to[at - 1];
        to[at] = v;
    }
}

}  // namespace

void Engine::read_row(const float* row, int index, const Want& want, Read& found, std::vector<float>& copy) {
    const int words = found.head->outputs;
    float most;
    int best = kernels->best(row, words, &most);
    const bool empty = most == -INFINITY && std::none_of(row, row + words, [](float x) { return std::isnan(x); });
    const float total = kernels->exp_sum(row, words, most);
    const float log_total = (float)std::log((double)total);
    if (std::isnan(total) && !empty)
        throw PassFault("NaN or infinity in the scores of token " + number(want.only[index]));
    const auto log_prob = [&](int word) { return empty ? -INFINITY : (row[word] - most) - log_total; };
    if (want.given && want.given[index] >= 0) found.given_log_probs[index] = log_prob(want.given[index]);
    const float* left = row;
    const int first = want.banned ? want.ban_offsets[index] : 0, last = want.banned ? want.ban_offsets[index + 1] : 0;
    if (first < last) {
        copy.assign(row, row + words);
        for (int i = first; i < last; i++) copy[want.banned[i]] = NAN;  // which is never the largest
        left = copy.data();
        float largest;
        best = kernels->best(left, words, &largest);
        if (std::isnan(left[best])) throw PassFault("all words are forbidden after token " + number(want.only[index]));
    }
    found.best[index] = best;
    found.log_probs[index] = log_prob(best);
    if (want.top) {
        int* top = found.top.data() + (size_t)index * want.top;
        best_words(left, words, want.top, top);
        for (int i = 0; i < want.top && top[i] >= 0; i++)
            found.top_log_probs[(size_t)index * want.top + i] = log_prob(top[i]);
    }
    if (want.margin) {
        int two[2] = {-1, -1};
        best_words(left, words, 2, two);
        const bool tie = two[1] >= 0 && left[two[0]] == left[two[1]];  // also of minus infinity
        found.margins[index] = two[1] < 0 ? INFINITY : tie ? 0.0f : left[two[0]] - left[two[1]];
    }
    if (!want.draw.uniforms) return;
    // Inversion in the order of ids, in fp64, over the words that the cuts leave.
    std::vector<double> probs(words);
    const double top = left[best];
    if (top == -INFINITY) throw PassFault("no word has a probability after token " + number(want.only[index]));
    for (int v = 0; v < words; v++)
        probs[v] = std::isnan(left[v]) ? 0.0 : std::exp((left[v] - top) / want.draw.temperature);
    const bool cut_k = want.draw.top_k > 0 && want.draw.top_k < words, cut_p = want.draw.top_p < 1.0;
    if (cut_k || cut_p) {
        std::vector<int> order;
        for (int v = 0; v < words; v++)
            if (!std::isnan(left[v])) order.push_back(v);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return left[a] > left[b]; });
        const int allowed = (int)order.size(), kept = cut_k ? std::min(want.draw.top_k, allowed) : allowed;
        double sum = 0.0, reached = 0.0;
        for (int i = 0; i < kept; i++) sum += probs[order[i]];
        for (int i = 0; i < allowed; i++) {
            if (i >= kept || (cut_p && reached >= want.draw.top_p * sum))
                probs[order[i]] = 0.0;
            else
                reached += probs[order[i]];
        }
    }
    double sum = 0.0, passed = 0.0;
    for (double p : probs) sum += p;
    const double aim = want.draw.uniforms[index] * sum;
    int drawn = -1;
    for (int v = 0; v < words; v++) {
        passed += probs[v];
        if (probs[v] > 0.0) drawn = v;
        if (passed > aim && drawn >= 0) break;
    }
    found.drawn[index] = drawn;
    found.drawn_log_probs[index] = log_prob(drawn);
}

}  // namespace nartk
