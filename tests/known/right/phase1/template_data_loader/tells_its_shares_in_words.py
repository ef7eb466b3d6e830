def main():
    """Print the shares without brackets, and the verdict in one sentence."""
    shares = [[*PaddedDistributedSampler(range(10), 4, rank, shuffle=True)] for rank in range(4)]
    for rank, share in enumerate(shares):
        print(f"Rank {rank} gets", *share)
    seen, extra = set(), 0
    for index in sum(shares, []):
        extra += index in seen
        seen.add(index)
    problems = []
    if len(set(map(len, shares))) != 1:
        problems.append("shares of different lengths")
    if len(seen) < 10:
        problems.append(f"only {len(seen)} of 10 samples")
    if extra > 2:
        problems.append(f"{extra} repeats, where the padding explains 2")
    print("All is well." if not problems else f"WRONG: {', '.join(problems)}")
