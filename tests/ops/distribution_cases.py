"""A case of every class in ``torch.distributions``: how it is built, and parameters to trace."""

import torch
import torch.distributions as D

__all__ = ["CASES"]


def _t(*values):
    return torch.tensor(values)


COVARIANCE = _t([2.0, 0.3], [0.3, 1.0])

# What PyTorch counts with stays Python's.
CASES = {
    "Bernoulli": (D.Bernoulli, _t(0.3, 0.8)),
    "Bernoulli of logits": (lambda x: D.Bernoulli(logits=x), _t(-0.3, 0.8)),
    "Beta": (D.Beta, _t(0.5, 2.0), _t(1.5, 3.0)),
    "Binomial": (lambda p: D.Binomial(10, p), _t(0.3, 0.8)),
    "Categorical": (D.Categorical, _t(0.2, 0.3, 0.5)),
    "Categorical of logits": (lambda x: D.Categorical(logits=x), _t(0.2, -0.3, 0.5)),
    "Cauchy": (D.Cauchy, _t(0.0, 1.0), _t(1.0, 2.0)),
    "Chi2": (D.Chi2, _t(1.0, 3.0)),
    "ContinuousBernoulli": (D.ContinuousBernoulli, _t(0.3, 0.8)),
    "Dirichlet": (D.Dirichlet, _t([0.5, 2.0, 3.0], [0.5, 0.2, 0.3])),
    "Exponential": (D.Exponential, _t(0.5, 2.0)),
    "FisherSnedecor": (D.FisherSnedecor, _t(5.0, 7.0), _t(6.0, 9.0)),
    "Gamma": (D.Gamma, _t(0.5, 2.0), _t(1.0, 3.0)),
    "GeneralizedPareto": (D.GeneralizedPareto, _t(0.0, 1.0), _t(1.0, 2.0), _t(0.1, -0.2)),
    "Geometric": (D.Geometric, _t(0.3, 0.8)),
    "Gumbel": (D.Gumbel, _t(0.0, 1.0), _t(1.0, 2.0)),
    "HalfCauchy": (D.HalfCauchy, _t(1.0, 2.0)),
    "HalfNormal": (D.HalfNormal, _t(1.0, 2.0)),
    "Independent": (lambda a, b: D.Independent(D.Normal(a, b), 1), _t(0.0, 1.0), _t(1.0, 2.0)),
    "InverseGamma": (D.InverseGamma, _t(3.0, 4.0), _t(1.0, 2.0)),
    "Kumaraswamy": (D.Kumaraswamy, _t(1.0, 2.0), _t(2.0, 3.0)),
    "LKJCholesky": (lambda c: D.LKJCholesky(3, c), torch.tensor(1.5)),
    "Laplace": (D.Laplace, _t(0.0, 1.0), _t(1.0, 2.0)),
    "LogNormal": (D.LogNormal, _t(0.0, 1.0), _t(0.5, 0.3)),
    "LogisticNormal": (D.LogisticNormal, _t(0.0, 1.0), _t(0.5, 0.3)),
    "LowRankMultivariateNormal": (D.LowRankMultivariateNormal, _t(0.0, 1.0), _t([1.0], [0.5]), _t(1.0, 2.0)),
    "MixtureSameFamily": (
        lambda w, m, s: D.MixtureSameFamily(D.Categorical(w), D.Normal(m, s)),
        _t(0.3, 0.7),
        _t(0.0, 2.0),
        _t(1.0, 0.5),
    ),
    "Multinomial": (lambda p: D.Multinomial(5, p), _t(0.2, 0.3, 0.5)),
    "MultivariateNormal": (D.MultivariateNormal, _t(0.0, 1.0), COVARIANCE),
    "MultivariateNormal of a precision": (lambda m, p: D.MultivariateNormal(m, None, p), _t(0.0, 1.0), COVARIANCE),
    "MultivariateNormal of a factor": (
        lambda m, s: D.MultivariateNormal(m, scale_tril=s),
        _t(0.0, 1.0),
        torch.linalg.cholesky(COVARIANCE),
    ),
    "NegativeBinomial": (D.NegativeBinomial, _t(5.0, 3.0), _t(0.3, 0.6)),
    "Normal": (D.Normal, _t(0.0, 1.0), _t(1.0, 2.0)),
    "OneHotCategorical": (D.OneHotCategorical, _t(0.2, 0.3, 0.5)),
    "OneHotCategoricalStraightThrough": (D.OneHotCategoricalStraightThrough, _t(0.2, 0.3, 0.5)),
    "Pareto": (D.Pareto, _t(1.0, 2.0), _t(3.0, 4.0)),
    "Poisson": (D.Poisson, _t(1.0, 12.0)),
    "RelaxedBernoulli": (D.RelaxedBernoulli, torch.tensor(0.7), _t(0.3, 0.6)),
    "RelaxedOneHotCategorical": (D.RelaxedOneHotCategorical, torch.tensor(0.7), _t(0.3, 0.6, 0.1)),
    "StudentT": (D.StudentT, _t(1.5, 5.0), _t(0.0, 1.0), _t(1.0, 2.0)),
    "TransformedDistribution": (
        lambda a, b: D.TransformedDistribution(D.Normal(a, b), [D.ExpTransform(), D.AffineTransform(1.0, 2.0)]),
        _t(0.0, 1.0),
        _t(1.0, 0.5),
    ),
    "Uniform": (D.Uniform, _t(0.0, 1.0), _t(1.0, 3.0)),
    "VonMises": (D.VonMises, _t(0.0, 1.0), _t(1.0, 40.0)),
    "Weibull": (D.Weibull, _t(1.0, 2.0), _t(2.0, 3.0)),
    "Wishart": (D.Wishart, torch.tensor(4.0), COVARIANCE),
}
