package jinja

import (
	"math"
	"math/big"
)

// power returns Python's x ** y of floats (CPython 3.11, floatobject.c: float_pow).
func (m *machine) power(x, y float64) (Value, error) {
	switch {
	case y == 0 || x == 1:
		return 1.0, nil
	case x != x || y != y:
		return math.NaN(), nil
	case math.IsInf(y, 0):
		switch abs := math.Abs(x); {
		case abs == 1:
			return 1.0, nil
		case (y > 0) == (abs > 1):
			return math.Inf(1), nil
		}
		return 0.0, nil
	}
	odd := math.Mod(math.Abs(y), 2) == 1
	switch {
	case math.IsInf(x, 0) && y > 0:
		if odd {
			return x, nil
		}
		return math.Inf(1), nil
	case math.IsInf(x, 0):
		if odd {
			return math.Copysign(0, x), nil
		}
		return 0.0, nil
	case x == 0 && y < 0:
		return nil, raise("ZeroDivisionError", "0.0 cannot be raised to a negative power")
	case x == 0:
		if odd {
			return x, nil
		}
		return 0.0, nil
	case x < 0 && y != math.Floor(y):
		return nil, unsupported("a complex number")
	}
	f, err := m.positivePower(math.Abs(x), y)
	if x < 0 && odd {
		f = -f
	}
	return f, err
}

// positivePower returns x ** y for x > 0. The engines' C library errs by up to 0.511
// + |y log x| * 1.5 / 2^15 units of the last place (glibc 2.28 and later, e_pow.c),
// so a result that close to the middle of two floats is not known.
func (m *machine) positivePower(x, y float64) (float64, error) {
	if err := m.step(2000); err != nil {
		return 0, err
	}
	log := math.Log2(x) * y
	if x > 0.5 && x < 2 {
		log = math.Log1p(x-1) / math.Ln2 * y // exact near 1
	}
	switch {
	case log > 1100:
		return 0, tooLarge()
	case log < -1200:
		return 0, nil
	case math.Abs(log) < 1e-18:
		return 1, nil
	}
	exact := bigPower(x, math.Abs(y))
	if y < 0 {
		exact.Quo(big.NewFloat(1), exact)
	}
	f, _ := exact.Float64()
	if math.IsInf(f, 0) {
		return 0, tooLarge()
	}
	slack := 0.0115 + math.Abs(log)*math.Ln2*1.5/(1<<15)
	unit := math.Nextafter(f, math.Inf(1)) - f
	for _, by := range []float64{-slack, slack} {
		moved := new(big.Float).Add(exact, big.NewFloat(0).Mul(big.NewFloat(unit), big.NewFloat(by)))
		if g, _ := moved.Float64(); g != f {
			return 0, unsupported("a power that is not certain in its last digit")
		}
	}
	return f, nil
}

func tooLarge() error {
	return raise("OverflowError", "(34, 'Numerical result out of range')")
}

// bigPower returns x ** y to 100 bits at least; y > 0.
func bigPower(x, y float64) *big.Float {
	const precision = 256
	whole, frac := math.Modf(y)
	result := new(big.Float).SetPrec(precision).SetInt64(1)
	square := new(big.Float).SetPrec(precision).SetFloat64(x)
	for n := uint64(whole); n > 0; n >>= 1 {
		if n&1 == 1 {
			result.Mul(result, square)
		}
		if n > 1 {
			square.Mul(square, square)
		}
	}
	root := new(big.Float).SetPrec(precision).SetFloat64(x)
	for ; frac > 0; _, frac = math.Modf(frac) {
		root.Sqrt(root)
		if frac *= 2; frac >= 1 {
			result.Mul(result, root)
		}
	}
	return result
}
