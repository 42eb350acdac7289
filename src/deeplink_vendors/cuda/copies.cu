// Pieces of memory copied in one launch, a row of blocks for each: see copies.py beside this file.

typedef unsigned long long word_t;

struct Copy {
  word_t from, to, bytes;
};

struct Table {
  Copy rows[64];
};

// By 16 bytes where both ends let it, else by what they let.
template <typename Piece>
__device__ word_t copied(const Copy& row, word_t begin) {
  const word_t step = (word_t)gridDim.x * blockDim.x, count = (row.bytes - begin) / sizeof(Piece);
  const Piece* from = (const Piece*)(row.from + begin);
  Piece* to = (Piece*)(row.to + begin);
  for (word_t at = (word_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) to[at] = from[at];
  return begin + count * sizeof(Piece);
}

extern "C" __global__ void copy_rows(const __grid_constant__ Table table) {
  const Copy row = table.rows[blockIdx.y];
  const word_t ends = row.from | row.to;
  word_t done = 0;
  if (ends % 16 == 0) done = copied<uint4>(row, done);
  if (ends % 4 == 0) done = copied<unsigned int>(row, done);
  copied<unsigned char>(row, done);
}
