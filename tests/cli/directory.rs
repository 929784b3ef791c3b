use super::Stage;
