"""The paper's figures remade: toy, ablation, floor, triggers."""
