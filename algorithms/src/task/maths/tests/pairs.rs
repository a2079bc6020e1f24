//! Pairs of answers: a row is a reference, and answers that are compared with it.

/// Answers that are equal to the reference before them.
pub(super) const EQUAL: &str = r"
5 ~ 5 ~ 5.0 ~ +5 ~ 05 ~ $5$ ~ \(5\) ~ 5. ~ (5) ~ {5} ~ \boxed{5} ~ \{5\} ~ x = 5 ~ 5 = x
5 ~ 2+3 ~ 2 + 3 = 5 ~ x = 2 + 3 = 5 ~ a + b = 5 ~ f(2) = 5 ~ \text{Area} = 5 ~ 5\text{ cm}
-5 ~ −5 ~ - 5
1000 ~ 1,000 ~ 1{,}000 ~ 1\,000 ~ 1 000 ~ 10^3 ~ 1e3
1234567.5 ~ 1,234,567.50
1500 ~ 1.5\times10^{3} ~ 1.5 \cdot 10^3
0.0015 ~ 1.5 \times 10^{-3} ~ 1.5e-3
1/2 ~ 0.5 ~ .5 ~ \frac{1}{2} ~ \frac12 ~ \dfrac 1 2 ~ \tfrac{2}{4} ~ \frac1{2} ~ \frac{1}2
1/2 ~ 50% ~ 50\%
50\% ~ 50 ~ 50 percent
0.5 ~ 50 \text{ percent}
-1/2 ~ \frac{-1}{2} ~ -\frac{1}{2} ~ \frac{1}{-2}
3/2 ~ 1\frac12 ~ 1\frac{1}{2} ~ 1 1/2 ~ 1½
-3/2 ~ -1\frac{1}{2}
1/3 ~ 0.\overline{3}
3/22 ~ 0.1\overline{36}
524288 ~ 2^{19} ~ 2^19 ~ 2**19
2^{19} ~ 524288
11 ~ 1011_2
1011_2 ~ 1011_{2} ~ 1011_{\text{two}}
120 ~ 5!
10 ~ \binom{5}{2} ~ {5 \choose 2} = 10
\sqrt{8} ~ 2\sqrt2 ~ 2\sqrt{2} ~ 2√2 ~ 2*sqrt(2) ~ 8^{1/2} ~ 2^{3/2} ~ 2^{1.5}
\frac{1}{\sqrt2} ~ \frac{\sqrt2}{2}
3 ~ \sqrt[3]{27}
-2 ~ \sqrt[3]{-8}
\sqrt{6} ~ \sqrt2\sqrt3
\sqrt{\frac{2}{3}} ~ \frac{\sqrt6}{3}
\sqrt[4]{4} ~ \sqrt2
\sqrt{3+2\sqrt2} ~ 1+\sqrt2
\sqrt{7 - 4\sqrt{3}} ~ 2 - \sqrt3
\frac{1+\sqrt5}{2} ~ \frac{2}{\sqrt5-1}
\left(\frac{1+\sqrt5}{2}\right)^2 ~ \frac{3+\sqrt5}{2}
2+\sqrt3 ~ \frac{1}{2-\sqrt{3}}
\sqrt{-4} ~ 2i
i^2 ~ -1
(1+i)^2 ~ 2i
\frac{1}{1+i} ~ \frac{1-i}{2}
e^{i\pi} ~ -1
2\pi ~ 2π ~ 2*pi
\frac{\pi}{4} ~ \pi/4 ~ \frac14\pi ~ \frac{\pi}{4} \approx 0.785
e^2 ~ e\cdot e
e^{-x} ~ \frac{1}{e^x}
\sin\frac{\pi}{6} ~ 1/2
\cos(\pi/12) ~ \frac{\sqrt6+\sqrt2}{4}
\tan 60^\circ ~ \sqrt{3}
\sin^2 x + \cos^2 x ~ 1
\sin 2x ~ 2\sin x\cos x
\cos(2x) ~ 1 - 2\sin^2 x
\tan x ~ \frac{\sin x}{\cos x}
\arctan 1 ~ \frac{\pi}{4}
\sin^{-1}(1/2) ~ \pi/6
\ln 4 ~ 2\ln 2
\ln 6 ~ \ln 2 + \ln 3
\ln\frac12 ~ -\ln 2
\log_2 8 ~ 3
\log_2 3 ~ \frac{\ln 3}{\ln 2}
\log 100 ~ 2
\log 2 ~ \ln 2
|-5| ~ 5
\left|x-1\right| ~ |1-x|
\sqrt{x^2} ~ |x|
90^\circ ~ 90 ~ 90° ~ \frac{\pi}{2}
90^{\circ} ~ 90 degrees
5 cm ~ 50 mm ~ 0.05 m
5 \text{ cm} ~ 5
5\,\mathrm{cm} ~ 5cm
12 \text{ cm}^2 ~ 12 square centimeters ~ 12\text{ cm}^{2}
36 km/h ~ 10 m/s
60 miles per hour ~ 60 mph
1 hour ~ 60 minutes
3 feet ~ 1 yard
\$5 ~ 5 dollars ~ $5 ~ 5 ~ 500 cents
\$1,250.50 ~ 1250.5
12 \text{ apples} ~ 12 ~ 12 apples
1 \text{ apple} ~ 1 apples
20^\circ C ~ 20°C
(0,1] ~ \left(0, 1\right]
[0,\infty) ~ [0, +\infty) ~ x \ge 0
(3,\infty) ~ x > 3
x>3 ~ 3<x
x > 3 ~ 2x > 6 ~ -x < -3
(1,5] ~ 1 < x \leq 5 ~ x \in (1,5]
1<x<5 ~ 5 > x > 1 ~ x > 1 and x < 5
(-\infty,1)\cup(2,\infty) ~ (2,\infty)\cup(-\infty,1) ~ x<1 \text{ or } x>2
(-\infty,\infty) ~ \mathbb{R}
\{1,2\} ~ \{2, 1\} ~ 1, 2 ~ {2,1} ~ \{1,2,2\}
\emptyset ~ \{\}
1, 2, 3 ~ 1, 2 and 3 ~ 3, 1, and 2
1,2 ~ x=1 \text{ or } x=2 ~ x = 1, 2
100, 200 ~ 100,200
(1,2) ~ (1, 2) ~ (1.0, \frac{4}{2}) ~ x=1, y=2 ~ (x,y) = (1,2)
(100,200) ~ (100, 200)
\langle 1,2\rangle ~ (1,2)
\begin{pmatrix}1\\2\end{pmatrix} ~ (1,2)
\begin{pmatrix}1&2\\3&4\end{pmatrix} ~ \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}
\begin{pmatrix}1&2\\3&4\end{pmatrix} ~ \left[\begin{array}{cc}1&2\\3&2^2\end{array}\right]
1 \pm \sqrt2 ~ 1+\sqrt2, 1-\sqrt2
\pm 3 ~ 3, -3 ~ x = \pm 3
3 \pm 0 ~ 3
y = 2x+1 ~ 2x + 1 = y ~ 2x - y + 1 = 0 ~ 4x - 2y + 2 = 0 ~ 2x+1
y = \frac1x ~ xy = 1
x = \sqrt2 ~ \sqrt2 x = 2
x^2+y^2=4 ~ \frac{x^2}{4}+\frac{y^2}{4}=1
(x+1)^2 ~ x^2+2x+1
\frac{x}{x^2} ~ \frac1x
\frac{x^2-1}{x-1} ~ x+1
x(x+1)(x-1) ~ x^3 - x
xy ~ y x
2ab ~ 2ba
x_1+x_2 ~ x_{2}+x_{1}
\frac{n(n+1)}{2} ~ \binom{n+1}{2}
2^{n+1} ~ 2\cdot 2^n
4^n ~ 2^{2n}
(-1)^{n+1} ~ -(-1)^n
x^{n}x ~ x^{n+1}
\sqrt{x}\sqrt{x} ~ x
\frac{1}{\sqrt{x+1}} ~ \frac{\sqrt{x+1}}{x+1}
e^{x+1} ~ e \cdot e^x
\ln|x| + C ~ C + \ln|x|
3:4 ~ 6:8 ~ \frac34
1:2:3 ~ 2:4:6
\text{Monday} ~ monday ~ Monday.
\text{yes} ~ Yes
\text{No} ~ no
\text{no solution} ~ No solution
A ~ (A) ~ \textbf{(A)} ~ \text{A}
(A) ~ a
B ~ B. ~ (B) 12
\textbf{(B)} 12 ~ B
\textbf{(B)}\ 12 ~ 12
ABC ~ ABC
\lfloor 3.7 \rfloor ~ 3
x \ne 3 ~ 3 \neq x
x^2 > y ~ y < x^2
\frac{3}{4} ~ \frac{3}{4}\approx 0.75
1.414 ~ x \approx 1.414
\{x | x > 3\} ~ (3,\infty)
\frac{\frac12}{3} ~ 1/6
2^{-1} ~ 0.5
2^-1 ~ 0.5
\sinh x ~ \frac{e^x-e^{-x}}{2}
3\sqrt[3]{4} ~ \sqrt[3]{108}
10^{100} ~ 10^{50}\cdot10^{50}
\int x dx ~ \int x dx
9^{9^{9^9}} ~ 9^{9^{9^9}}
1,2,3 ~ \{1,2,3\}
\frac{3\sqrt{3}}{4} ~ \dfrac{3 \sqrt 3}{4} ~ 3\sqrt{3}/4 ~ 0.75\sqrt3
\left( 3, \frac{\pi}{2} \right) ~ (3, \pi/2)
p - q ~ -q+p
\frac{14}{3} ~ 4\frac{2}{3} ~ 4 2/3
11\sqrt2 ~ \sqrt{242}
\text{(C)} ~ C
6 - 5i ~ -5i+6
[-2,7] ~ -2 \le x \le 7
3 \pm 2 \sqrt{2} ~ 3+2\sqrt2,3-2\sqrt2
\$18.90 ~ 18.9 \text{ dollars}
\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix} ~ \begin{pmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{pmatrix}
\text{Evelyn} ~ Evelyn
3R^2 ~ 3 R^2
2516_8 ~ 2516_8
\frac{270}7\text{ degrees} ~ \frac{270}{7}^\circ
\angle ABC = 30^\circ ~ 30
30^\circ ~ \angle ABC = 30^\circ
144\text{ cm}^3 ~ 144
1{,}000{,}000 ~ 10^6
f(x) = x^2 ~ x^2
x+1 ~ f^{-1}(x) = x + 1
2x ~ \frac{dy}{dx} = 2x
x \equiv 3 \pmod 7 ~ x\equiv3\pmod{7}
2\text{ or }3 ~ 2 or 3
\text{2 and 3} ~ 3, 2
n(n+1)/2 ~ \frac{n^2+n}{2}
-\frac{\sqrt{3}}{2} ~ \frac{-\sqrt3}{2}
0 ~ -0 ~ 0.00
12% ~ 0.12
1.23 \times 10^5 ~ 123{,}000
\sqrt[3]{2} ~ 2^{1/3} ~ 2^\frac13
\frac{\ln 2}{\ln 3} ~ \log_3 2
\log_3{2} ~ \log_{3}(2)
e^{2\ln 3} ~ 9
\cos^2 x ~ (\cos x)^2
\sec^2 x ~ 1 + \tan^2 x
\frac{x-2}{x^2-4} ~ \frac{1}{x+2}
(x-2)(x+2) ~ x^2-4
\sum_{i=1}^n i ~ \sum_{i=1}^{n} i
x=1,\ y=2 ~ (1,2)
(1, 2), (3, 4) ~ (3,4) \text{ and } (1,2)
\{(1,2),(3,4)\} ~ \left\{ (3,4), (1,2) \right\}
x \in \{1, 2\} ~ \{2,1\}
2 \cdot 3 ~ 6
True ~ true
\infty ~ +\infty ~ infinity
\text{DNE} ~ DNE
8:00 ~ 8:00
\frac{1}{2} \text{ hour} ~ 30 minutes
\frac12 x ~ x/2 ~ 0.5x
3x^{2}y ~ 3 y x^2
e^{i \theta} ~ \cos\theta + i\sin\theta
\tan^{-1} 2 ~ \arctan 2
\arcsin x + \arccos x ~ \frac{\pi}{2}
\binom{n}{k} ~ {n \choose k}
\sqrt{a^2+b^2} ~ (b^2+a^2)^{1/2}
\sqrt{4x^2+4} ~ 2\sqrt{x^2+1}
\frac{\sqrt{x}}{x} ~ \frac{1}{\sqrt x}
x^{-1} ~ 1/x
\sqrt{\sqrt{2}} ~ \sqrt[4]{2}
\frac{\sqrt{2+\sqrt{2}}}{2} ~ \cos\frac{\pi}{8}
\sqrt{2+\sqrt3} ~ \frac{\sqrt6+\sqrt2}{2}
2^{100} ~ 1267650600228229401496703205376
\frac{2^{2024}-1}{3} ~ \frac13(4^{1012}-1)
100! ~ 99! \cdot 100
\frac{100!}{98!} ~ 9900
\frac{5}{12}\approx 0.417 ~ 5/12
-\frac{1}{2} ~ -.5
\frac{a}{b} ~ a/b
\frac{a}{b}\cdot c ~ \frac{ac}{b}
3, -1 ~ \{-1, 3\}
t = 3\text{ s} ~ 3 seconds
5\text{ m/s}^2 ~ 5 m/s^2
5\,\text{m}\,\text{s}^{-1} ~ 5
25\text{ mph} ~ 25 miles/hour
x<3 ~ (-\infty, 3)
x \leq 3 ~ 3 \geq x
x^2+y^2 \le 4 ~ 4 \geq x^2+y^2
2x+3y=6 ~ \frac{x}{3}+\frac{y}{2}=1
\mathbf{5} ~ 5
\displaystyle 5 ~ 5
\left(\frac{1}{2}\right) ~ 0.5
\overline{AB} ~ AB
$\frac{1}{2}$ ~ \frac{1}{2}
$$5$$ ~ 5
5 \% ~ 5\%
\frac{1}{\sqrt{3}}+\frac{1}{\sqrt{2}} ~ \frac{\sqrt3}{3}+\frac{\sqrt2}{2}
\frac{1}{\sqrt2+\sqrt3} ~ \sqrt3-\sqrt2
(\sqrt2+\sqrt3)^2 ~ 5+2\sqrt6
(2+\sqrt3)^{10} ~ \frac{1}{(2-\sqrt3)^{10}}
\sqrt[3]{2}\cdot\sqrt[3]{4} ~ 2
\sqrt2\cdot\sqrt[3]{2} ~ \sqrt[6]{32}
\sqrt{5!} ~ 2\sqrt{30}
\omega^2 ~ ω²
\alpha+\beta ~ β+α
x^{2y} ~ (x^y)^2
2^{x}3^{x} ~ 6^x
\sqrt{2^{2n}} ~ 2^n
e^{\ln x} ~ x
\ln(e^x) ~ x
\ln(x^2) ~ 2\ln x
\lg 1000 ~ 3
\frac{\pi^2}{6} ~ π²/6
\cos(-x) ~ \cos x
\sin(x+\pi) ~ -\sin x
\sin(\pi/2 - x) ~ \cos x
\sin 18^\circ ~ \frac{\sqrt5-1}{4}
\cot\frac{\pi}{4} ~ 1
x^2+2 ~ 2+x·x
1\text{ million} ~ 1 million
(2, 3] ~ 2 < x \le 3
(-\infty,-1]\cup[1,\infty) ~ x \le -1 \text{ or } x \ge 1
a=1, b=2 ~ b=2, a=1
|z|=1 ~ |z| = 1
\frac{1}{2}\ln 4 ~ \ln 2
\text{B} ~ \textbf{B}
\textbf{(D)}\ \frac{1}{2} ~ (D)
\text{A and B} ~ B, A
2^{3^2} ~ 512
\frac{2}{\frac{3}{4}} ~ \frac{8}{3}
\sqrt{12}/\sqrt{3} ~ 2
1-\frac{1}{1-x} ~ \frac{x}{x-1}
x+\frac1x ~ \frac{x^2+1}{x}
\lceil 2.1 \rceil ~ 3
(x,y) \in \{(1,2)\} ~ \{(1,2)\}
1, 2 ~ 2 or 1
11111111100 ~ 11,\! 111,\! 111,\! 100
2:30 \text{ p.m.} ~ 2:30 PM
864 \mbox{ inches}^2 ~ 6 square feet
\mathbb{Z} ~ $\mathbb Z$
";

/// Answers that are not.
pub(super) const DIFFERENT: &str = r"
5 ~ 6 ~ -5 ~ 5.1 ~ 55 ~ \{5,6\} ~ 5, 6 ~ 5 or 6 ~ \pm 5 ~ x ~ 5 = 6 ~ x > 5 ~ 5x ~ (5,5)
5 ~ yes ~ 5 not 6 ~ 5i ~ 5e ~ 5 \text{ or } 6 ~ x=5, x=6 ~ 5, 5 ~ 5;6 ~ 5 \neq 6
5 ~ \text{not } 5 ~ \text{1 2 3 4 5 or 6}
4 ~ 1, 2, 3, 4 or 5
6 ~ 5 = 6
1000 ~ 1,0000 ~ 1,00 ~ 1.000
1/2 ~ 2/1 ~ 0.49999999999999999999
1/3 ~ 0.33333333333333333333
50\% ~ 5
50 ~ 0.5
11/2 ~ 1 1/2
3.14 ~ \pi
\pi ~ 22/7
\sqrt2 ~ 1.41421356237309504880 ~ \sqrt3
\sqrt{8} ~ 2\sqrt{3}
1+\sqrt2 ~ 1-\sqrt2
\sqrt2+\sqrt3 ~ \sqrt5
i ~ -i
2^{19} ~ 2^{18}
524288 ~ 524287
1011 ~ 1011_2
5 cm ~ 5 mm ~ 5 kg
12 \text{ cm}^2 ~ 12 cm
\$5 ~ 5 cents ~ £5
90^\circ ~ 80 ~ \pi
12 apples ~ 13 apples
(0,1] ~ [0,1] ~ [0,1) ~ (0,2]
[1,2] ~ 1, 2
(3,\infty) ~ x \ge 3
x>3 ~ x<3 ~ y>3 ~ x>4 ~ -x>-3
1<x<5 ~ 1<x<6
(1,2) ~ (2,1) ~ (1,2,3) ~ \{1,2\} ~ 1.2 ~ 1 or 2
\{1,2\} ~ \{1,3\} ~ \{1,2,3\} ~ 1
1, 2 ~ 1
1, 1, 2 ~ 1, 2, 2
1 \pm \sqrt2 ~ 1 + \sqrt2
\begin{pmatrix}1&2\\3&4\end{pmatrix} ~ \begin{pmatrix}1&3\\2&4\end{pmatrix}
\begin{pmatrix}1&2\end{pmatrix} ~ \begin{pmatrix}1\\2\end{pmatrix}
y = 2x+1 ~ y = 2x-1 ~ 2x - y = 1
x = 5 ~ y = 5 ~ x = x
x^2 = x ~ x = 1
y = x+1 ~ x = x
(x+1)^2 ~ x^2+1
x^2 ~ x^3
x ~ y ~ -x
\frac1x ~ x
x+y ~ x-y
2^n ~ 2^{n+1}
(-1)^n ~ (-1)^{n+1}
\ln 2 ~ \ln 3
\log_2 8 ~ 4
3:4 ~ 4:3
1:2:3 ~ 1:3:2
\text{Monday} ~ Tuesday
yes ~ no
A ~ B ~ (A) or (B)
(A) ~ (B)
ABC ~ CBA
\text{dog} ~ \text{god}
x \ne 3 ~ x \ne 4
\infty ~ -\infty
e^x ~ e^{-x}
\frac12 ~ 12
\frac{1}{23} ~ \frac{12}{3}
1,2 ~ 12
1.2 ~ 12
[1,2) ~ (1,2]
a<b ~ a>b
x \le 3 ~ x<3
\sqrt[3]{8} ~ \sqrt{8}
3\sqrt{8} ~ \sqrt[3]{8}
10 cm ~ 10 m
no ~ on
\log_2 3 ~ \log_3 2
\frac{x+1}{x} ~ 1
100 ~ 1,00
3/4 ~ 4/3
2 ~ x^2 = 4
\frac{1}{3} ~ 0.333
30 ~ 30,000
3\frac12 ~ \frac32
9900 ~ \frac{100!}{97!}
2^{100} ~ 1267650600228229401496703205377
(\sqrt2+\sqrt3)^2 ~ 5
1+i ~ 1-i
2^{3^2} ~ 64
-2^2 ~ 4
(1, 2), (3, 4) ~ (1, 3), (2, 4)
\{(1,2)\} ~ \{(2,1)\}
f(x) = x^2 ~ x^3
2x+3y=6 ~ 2x+3y=7
x<3 ~ 3<x
25 mph ~ 25 km/h
C ~ D
(C) 5 ~ (D) 5
\text{Evelyn} ~ Angela
\frac{1}{2} hour ~ 20 minutes
12% ~ 1.2
\pi^2/6 ~ \pi/6
x^2y ~ xy^2
\binom{5}{2} ~ \binom{5}{1}
[0,1] ~ \{0,1\}
(-\infty,1) ~ (-\infty,1]
1:2 ~ 1:3
a=1, b=2 ~ a=2, b=1
x > 5 ~ 5 or \infty
3:4:5 ~ 3:5:4
2:30 \text{ p.m.} ~ 1:15 \text{ p.m.}
7:00 ~ 8:00
";

/// Answers of which it is not told.
pub(super) const UNDECIDED: &str = r"
12 apples ~ 12 oranges
\sin x ~ \cos x
5 ~ \frac{1}{0} ~ 5 + ~ ((((5 ~ 9^{9^{9^9}} ~ \foo{5} ~ 5 | 6 ~ \max(4,5) ~ 5 \to 6
5 ~ 5 \approx \int x ~ x \in 5 ~ yes \in \{5\}
\int x dx ~ \int y dy
0 ~ 0/0
1 ~ 0^0
\sqrt{x} ~ \sqrt{x+1}
";
