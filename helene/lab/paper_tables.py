"""The tables of the HELENE paper as it prints them, the one place where their numbers are typed.

Transcribed from the LaTeX source: percent (accuracy, or F1 for SQuAD), ``±`` before a standard deviation, ``*`` after
what is bold. `theory.sources.paper_numbers` has them exactly, `llm_bench.protocol.paper_tables` by method and task.
"""

from __future__ import annotations

ROBERTA_TASKS = ("SST-2", "SST-5", "SNLI", "MNLI", "RTE", "TREC")
OPT_TASKS = ("SST-2", "RTE", "CB", "BoolQ", "WSC", "WIC", "COPA", "ReCoRD", "SQuAD")
SST2_COLUMNS = ("RoBERTa FT", "RoBERTa LoRA", "RoBERTa prefix", "OPT FT", "OPT LoRA", "OPT prefix")

#: Table 1 (label tab:roberta_k16): RoBERTa-large, k = 16, mean ± standard deviation over 5 runs. Bold as printed.
ROBERTA = {
    "zero-shot": "79.0 35.5 50.2 48.8 51.4 32.0",
    "LP": "76.0±2.8 40.3±1.9 66.0±2.7 56.5±2.5 59.4±5.3 51.3±5.5",
    "Adam FT": "91.9±1.8 46.7±1.9 77.5±2.6 70.0±2.3 66.4±7.2 85.0±2.5",
    "Adam LoRA": "91.4±1.7 46.7±1.1 74.9±4.3 67.7±1.4 66.1±3.5 82.7±4.1",
    "Adam prefix": "91.9±1.0 47.7±1.1 77.2±1.3 66.5±2.5 66.6±2.0 85.7±1.3",
    "MeZO FT": "90.5±1.2 45.5±2.0 68.5±3.9 58.7±2.5 64.0±3.3 76.9±2.7",
    "MeZO LoRA": "91.4±0.9 43.0±1.6 69.7±6.0 64.0±2.5 64.9±3.6 73.1±6.5",
    "MeZO prefix": "90.8±1.7 45.8±2.0 71.6±2.5 63.4±1.8 65.4±3.9 80.3±3.6",
    "HELENE FT": "91.6*±2.3 44.7±0.8 70.0*±2.6 58.9*±1.1 65.7*±1.2 78.1*±1.5",
    "HELENE LoRA": "90.6±0.3 41.8±1.0 68.5±2.0 59.0±1.1 66.8*±3.2 67.4±2.1",
    "HELENE prefix": "91.7*±0.6 46.0*±0.7 69.5±1.9 64.6*±2.1 66.1*±1.8 77.4±2.1",
}

#: Table 2 (label tab:opt_results): OPT-1.3B, 1000 examples, one run. "Adam FT" is its last row, "FT (12x memory)".
OPT = {
    "zero-shot": "53.4 53.1 37.5 45.7 44.2 57.0 75.0 70.3 27.1",
    "ICL": "80.3 53.1 48.2 58.5 44.2 50.6 69.0 71.0 59.0",
    "LP": "80.3 52.7 44.6 58.9 47.1 50.6 69.0 71 75.9",
    "MeZO FT": "89.6 55.8 77.0 59.6 55.0 58.0 74.0 60.0 62.2",
    "MeZO LoRA": "90.8 63.0 78.0 67.2 51.2 58.0 79.0 59.8 67.6",
    "MeZO prefix": "92.4 52.8 66.0 61.6 51.6 52.8 74.0 56.8 56.0",
    "HELENE FT": "91.2* 64.4* 87.0* 60.8* 55.4* 58.4* 69.0 55.6 63.8*",
    "HELENE LoRA": "91.4* 50.6 76 64.0 49.6 52.6 82.0* 60.2* 60.4",
    "HELENE prefix": "92.4* 51.6 74.0* 62.5* 52* 57.2* 80.0* 58.8* 68.4*",
    "Adam FT": "90.8 73.4 77 70.2 53 60.2 81.0 59.6 70.9",
}

#: Table 3 (label tab:revisiting): SST-2; the rows but HELENE's are quoted by the paper from elsewhere.
SST2 = {
    "FO-SGD": "91.4 91.2 89.6 91.1 93.6 93.1",
    "Forward-Grad": "90.1 89.7 89.5 90.3 90.3 90.0",
    "ZO-SGD": "89.4 90.8 90.0 90.8 90.1 91.4",
    "ZO-SGD-MMT": "89.6 90.9 90.1 85.2 91.3 91.2",
    "ZO-SGD-Cons": "89.6 91.6* 90.1 88.3 90.5 81.8",
    "ZO-SGD-Sign": "52.5 90.2 53.6 87.2 91.5 89.5",
    "ZO-Adam": "89.8 89.5 90.2 84.4 92.3* 91.4",
    "HELENE": "91.1* 90.6 91.7* 90.8* 91.4 92.4*",
}

#: Appendix, Limitations: GB for OPT-1.3B, and the factor claimed; Table 2's last row has the other factor.
MEMORY_GB = {"MeZO": 4, "ICL": 6, "HELENE": 14, "prefix FT": 19, "FT": 27}
