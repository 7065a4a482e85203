"""What the experiment packages share: records, sweeps, fits, figures, pages. The core never imports it."""
