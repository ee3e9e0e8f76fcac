// What is read of a pass: the best words, log-probabilities, margins and draws.
#include "engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace nartk {

static constexpr int READ = 32;             // tokens whose logits are there at once
static constexpr size_t LISTED = 96 << 20;  // bytes of listed layers that are kept

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
    const int n = (int)want.only.size(), d = head.inputs;
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
    const auto list = [&](int i) { return want.words + want.word_offsets[i]; };
    const auto size = [&](int i) { return want.words ? want.word_offsets[i + 1] - want.word_offsets[i] : 0; };
    for (int begin = 0, m; begin < n; begin += m) {
        if (interrupted) interrupted();
        // Tokens that follow each other have one layer as long as their words are the same.
        const int count = size(begin);
        for (m = 1; m < std::min(READ, n - begin); m++)
            if (size(begin + m) != count ||
                (count && std::memcmp(list(begin), list(begin + m), count * sizeof(int)) != 0))
                break;
        const std::shared_ptr<const Listed> some = count ? listed(head, list(begin), count) : nullptr;
        const Linear& layer = some ? some->layer.linear : head;
        const int wide = layer.width();
        float* rows = space.logits.get((size_t)m * wide);
        linear(space, layer, found.hidden.data() + (size_t)begin * d, m, d, rows, wide);
        threads.share(m, threads.parts(m, (double)m * layer.outputs * 8 / PART), [&](int, int first, int last) {
            std::vector<float> copy;
            for (int i = first; i < last; i++)
                read_row(rows + (size_t)i * wide, some.get(), begin + i, want, found, copy);
        });
    }
}

std::shared_ptr<const Engine::Listed> Engine::listed(const Linear& head, const int* words, int count) {
    const auto bytes = [](const Listed& each) {
        return each.layer.linear.bytes() + each.words.size() * sizeof(int);
    };
    {
        const std::lock_guard<std::mutex> lock(mutex);
        for (auto it = lists.begin(); it != lists.end(); ++it)
            if ((*it)->from == &head && (int)(*it)->words.size() == count &&
                std::memcmp((*it)->words.data(), words, count * sizeof(int)) == 0) {
                lists.splice(lists.begin(), lists, it);
                return lists.front();
            }
    }
    auto made = std::make_shared<const Listed>(head, words, count);
    const std::lock_guard<std::mutex> lock(mutex);
    lists.push_front(made);
    for (list_bytes += bytes(*made); list_bytes > LISTED && lists.size() > 1; lists.pop_back())
        list_bytes -= bytes(*lists.back());
    return made;
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

void Engine::read_row(const float* row, const Listed* list, int index, const Want& want, Read& found,
                      std::vector<float>& copy) {
    const int words = list ? (int)list->words.size() : found.head->outputs;
    const auto word_at = [&](int v) { return list ? list->words[v] : v; };
    const auto place = [&](int word) {  // in the row; -1: it is not listed
        if (!list) return word;
        const auto at = std::lower_bound(list->words.begin(), list->words.end(), word);
        return at != list->words.end() && *at == word ? (int)(at - list->words.begin()) : -1;
    };
    float most;
    int best = kernels->best(row, words, &most);
    const bool empty = most == -INFINITY && std::none_of(row, row + words, [](float x) { return std::isnan(x); });
    const float total = kernels->exp_sum(row, words, most);
    const float log_total = (float)std::log((double)total);
    if (std::isnan(total) && !empty)
        throw PassFault("NaN or infinity in the scores of token " + number(want.only[index]));
    const auto log_prob = [&](int v) { return empty || v < 0 ? -INFINITY : (row[v] - most) - log_total; };
    if (want.given && want.given[index] >= 0) found.given_log_probs[index] = log_prob(place(want.given[index]));
    const float* left = row;
    const int first = want.banned ? want.ban_offsets[index] : 0, last = want.banned ? want.ban_offsets[index + 1] : 0;
    if (first < last) {
        copy.assign(row, row + words);
        for (int i = first; i < last; i++)
            if (const int v = place(want.banned[i]); v >= 0) copy[v] = NAN;  // which is never the largest
        left = copy.data();
        float largest;
        best = kernels->best(left, words, &largest);
        if (std::isnan(left[best])) throw PassFault("all words are forbidden after token " + number(want.only[index]));
    }
    found.best[index] = word_at(best);
    found.log_probs[index] = log_prob(best);
    if (want.top) {
        int* top = found.top.data() + (size_t)index * want.top;
        best_words(left, words, want.top, top);
        for (int i = 0; i < want.top && top[i] >= 0; i++) {
            found.top_log_probs[(size_t)index * want.top + i] = log_prob(top[i]);
            top[i] = word_at(top[i]);
        }
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
    found.drawn[index] = word_at(drawn);
    found.drawn_log_probs[index] = log_prob(drawn);
}

}  // namespace nartk
