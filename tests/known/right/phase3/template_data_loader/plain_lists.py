"""Python lists and loops: rows by slicing, the mask document by document."""


def pack_documents(documents, sequence_length, eos):
    if sequence_length < 1:
        raise ValueError("sequence_length")
    stream = []
    for document in documents:
        stream.extend(document.tolist())
        stream.append(eos)
    rows = []
    start = 0
    while start + sequence_length < len(stream):
        rows.append(stream[start : start + sequence_length + 1])
        start += sequence_length
    if not rows:
        raise ValueError("documents are too short for sequence_length")
    return torch.tensor(rows, dtype=torch.int64)


def document_mask(inputs, eos):
    batch, length = inputs.shape
    mask = torch.zeros(batch, length, length, dtype=torch.bool)
    for b in range(batch):
        begin = 0
        for q in range(length):
            mask[b, q, begin : q + 1] = True
            if inputs[b, q] == eos:
                begin = q + 1
    return mask
