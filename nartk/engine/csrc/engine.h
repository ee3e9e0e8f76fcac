// A model's encoder and its pass, each one call.
//
// Symbols: n tokens, S source positions, d features of the model, H heads of f features (a multiple of 16).
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cells.h"
#include "kernels.h"
#include "threads.h"

namespace nartk {

struct Norm {
    const float* gain = nullptr;  // null: there is no norm here
    const float* bias = nullptr;  // null: RMSNorm
    float eps = 1e-5f;
};

struct Embedding {
    const Linear* words = nullptr;  // its rows are the words' vectors
    float scale = 1.0f;
    const float* positions = nullptr;  // [count,d]; null: none
    int count = 0;
    int offset = 0;  // of the first position in the table
    Norm norm;
};

struct Layer {
    bool norm_first = true;
    int heads = 1, features = 16;
    float scale = 1.0f;  // of attention scores
    const Linear *qkv = nullptr, *out = nullptr;
    const Linear *cross_q = nullptr, *cross_kv = nullptr, *cross_out = nullptr;
    const Linear *up = nullptr, *gate = nullptr, *down = nullptr;
    Activation activation = Activation::relu;
    Norm self_norm, cross_norm, ffn_norm;
    int width() const { return heads * features; }
};

struct Stack {
    Embedding embedding;
    std::vector<Layer> layers;
    Norm norm;
};

struct Network {
    int features = 0;  // d
    Stack encoder, decoder;
    const Linear* output = nullptr;
    float output_scale = 1.0f;
    int source_words = 0, words = 0;
    int most_source = 0, most_target = 0;  // positions
    // Of the layers of a stack, the floats of keys and values of a token.
    size_t kv_floats(const Stack& stack) const;
};

// A block of floats that only grows.
class Buffer {
  public:
    ~Buffer() { release(data); }
    float* get(size_t count);

  private:
    float* data = nullptr;
    size_t size = 0;
};

struct Workspace {
    Buffer x, normed, projected, attended, inner, gated, logits, weights, quantised, scales, memory;
};

struct Memory {
    int length = 0;
    std::vector<float> output;       // [S,d]
    Buffer kv;                       // [S, of all layers]
    std::vector<const float*> rows;  // [S]
};

// What is read after a token beside the best word.
struct Drawing {
    const double* uniforms = nullptr;
    double temperature = 1.0, top_p = 1.0;
    int top_k = 0;
};

struct Want {
    std::vector<int> only;  // the scored tokens
    const int* ban_offsets = nullptr;
    const int* banned = nullptr;
    int top = 0;
    bool margin = false;
    const int* given = nullptr;
    Drawing draw;
};

struct Read {
    std::vector<int> best, top, drawn;
    std::vector<float> log_probs, top_log_probs, margins, given_log_probs, drawn_log_probs;
    std::vector<float> hidden;  // [n,d]
    float* logits = nullptr;    // [n,V]: the caller's, where these are wanted as well
};

class Engine {
  public:
    Engine(std::shared_ptr<const Network> network, const Kernels* kernels, int threads);

    std::vector<int> encode(const int* tokens, const int* lengths, int count);
    void free(const int* memories, int count);
    struct Tokens {
        int count;
        const int *words, *positions, *memories, *contexts, *parents;
    };
    std::shared_ptr<Pending> run(const Tokens& tokens, const Want& want, Read& read);
    // Logits [m,V] of hidden features [m,d].
    void logits(const float* hidden, int count, float* to);
    std::shared_ptr<const Memory> memory(int handle);
    size_t memories_in_use();

    Cells cells;
    const std::shared_ptr<const Network> network;
    const Kernels* const kernels;
    Threads threads;
    std::function<void()> interrupted;  // called between layers; throws to break off

  private:
    struct Lease;
    void linear(Workspace& space, const Linear& w, const float* x, int n, int ldx, float* y, int ldy,
                Epilogue epilogue = {});
    void embed(const Embedding& embedding, const int* words, const int* positions, int n, float* x);
    void normed(const Norm& norm, const float* x, int n, float* y);
    template <class Body>
    void attend(Workspace& space, const Layer& layer, const float* q, int ldq, int n, int longest, float* y, Body over);
    template <class Inner>
    void sublayer(Workspace& space, const Norm& norm, bool first, float* x, int n, Inner inner);
    void feed_forward(Workspace& space, const Layer& layer, float* x, int n);
    void read(Workspace& space, const Want& want, Read& read);
    void read_row(const float* row, int index, const Want& want, Read& read, std::vector<float>& copy);
    int stride() const;  // floats of a token's features in a buffer

    std::mutex mutex;  // of memories and spaces
    std::unordered_map<int, std::shared_ptr<const Memory>> memories;
    int next_memory = 0;
    std::vector<std::unique_ptr<Workspace>> spaces;
};

}  // namespace nartk
