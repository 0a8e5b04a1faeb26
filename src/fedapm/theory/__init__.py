"""The paper's analysis in numbers: curvature, what it demands of ρ and σ, how much clients disagree, observed rates."""
