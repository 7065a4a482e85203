"""One run: a frozen config in, a result of plain values out; resumable, and the same however often it was stopped."""
